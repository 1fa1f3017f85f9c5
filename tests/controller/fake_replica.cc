#include "tests/controller/fake_replica.h"

#include <utility>

#include "absl/time/clock.h"
#include "kernels/base/check.h"
#include "runtime/worker/link_limits.h"
#include "runtime/worker/plan_codec.h"

namespace lockstep::testing {

RankStream::RankStream(const std::string& address, const std::string& secret) {
  context_.AddMetadata(kLinkSecretKey, secret);
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // one connection per rank
  channel_ = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  stream_ = v1::WorkerLink::NewStub(channel_)->Connect(&context_);
}

RankStream::~RankStream() {
  if (finished_) return;
  Cancel();
  Finish();
}

bool RankStream::SendHello(const v1::Hello& hello) {
  v1::FromRank message;
  *message.mutable_hello() = hello;
  return Send(message);
}

bool RankStream::SendLoaded(int64_t max_kv_blocks) {
  v1::FromRank message;
  message.mutable_loaded()->set_weight_bytes(1000);
  message.mutable_loaded()->set_shard_bytes(900);
  message.mutable_loaded()->set_loaded_bytes(900);
  message.mutable_loaded()->set_kv_block_bytes(64);
  v1::KvRoom& room = *message.mutable_loaded()->mutable_kv_room();
  room.set_max_kv_blocks(max_kv_blocks);
  room.set_most_kv_blocks(std::max<int64_t>(max_kv_blocks, 0));
  message.mutable_loaded()->set_backend("fake");
  return Send(message);
}

bool RankStream::SendReady() {
  v1::FromRank message;
  message.mutable_ready()->set_kv_cache_bytes(4096);
  return Send(message);
}

grpc::Status RankStream::Finish() {
  v1::ToRank ignored;
  while (stream_->Read(&ignored)) {
  }
  finished_ = true;
  return stream_->Finish();
}

FakeReplica::FakeReplica(const std::string& address, const FakeReplicaOptions& options,
                         const engine::FakeLanguageModel& model)
    : options_(options), model_(model), ends_(options.grid.world_size()) {
  for (int rank = 0; rank < options_.grid.world_size(); ++rank) {
    streams_.push_back(std::make_unique<RankStream>(address, options.hello.secret()));
  }
  for (int rank = 0; rank < options_.grid.world_size(); ++rank) {
    threads_.emplace_back([this, rank] { Live(rank); });
  }
}

FakeReplica::~FakeReplica() {
  Release();
  for (const std::unique_ptr<RankStream>& stream : streams_) stream->Cancel();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void FakeReplica::HoldAfter(int64_t num_steps) {
  absl::MutexLock lock(&mutex_);
  steps_left_ = num_steps;
}

void FakeReplica::WaitUntilReleased() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(
      +[](int64_t* left) { return *left > 0; }, &steps_left_));
  --steps_left_;
}

grpc::Status FakeReplica::Wait(int rank) {
  threads_[rank].join();
  return ends_[rank];
}

void FakeReplica::Live(int rank) {
  RankStream& stream = *streams_[rank];
  v1::Hello hello = options_.hello;
  hello.set_rank(rank);
  hello.set_world_size(options_.grid.world_size());
  hello.set_tensor_parallel(options_.grid.tp());
  hello.set_pipeline_parallel(options_.grid.pp());
  hello.set_pid(1000 + rank);
  stream.SendHello(hello);
  const bool is_reporter = rank == options_.grid.rank_of(options_.grid.pp() - 1, 0);
  engine::SimulatedRank simulated(options_.rank, model_);
  v1::ToRank message;
  uint64_t last_step = 0;
  while (stream.Receive(&message)) {
    if (message.has_welcome()) {
      v1::FromRank loading;
      loading.mutable_loading()->set_bytes_done(450);
      loading.mutable_loading()->set_bytes_total(900);
      stream.Send(loading);
      stream.SendLoaded(options_.rank.num_blocks + rank);  // the smallest is rank 0's
    } else if (message.has_start()) {
      LS_CHECK_LE(message.start().num_kv_blocks(), options_.rank.num_blocks);
      stream.SendReady();
    } else if (message.has_plan() && is_reporter) {
      const engine::StepPlan plan = *DecodePlan(message.plan());
      const engine::StepResult result = simulated.Execute(plan, last_step);
      last_step = plan.step_id;
      if (options_.step_time > absl::ZeroDuration()) absl::SleepFor(options_.step_time);
      WaitUntilReleased();
      num_steps_.store(plan.step_id);
      v1::FromRank reply;
      EncodeResult(result, reply.mutable_result());
      if (!finds_tokens_) {
        for (int32_t& token : *reply.mutable_result()->mutable_tokens()) token = kNoToken;
      }
      if (!stream.Send(reply)) break;
    } else if (message.has_shutdown()) {
      break;
    }
  }
  ends_[rank] = stream.Finish();
}

}  // namespace lockstep::testing
