#include "tests/controller/controller_fixture.h"

#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpcpp/generic/generic_stub.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/model_writer.h"
#include "model/tokenizer/tokenizer_fingerprint.h"
#include "tests/support/temp_directory.h"

namespace lockstep::testing {
namespace {

constexpr char kConfigJson[] = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16,
  "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "vocab_size": 400, "max_position_embeddings": 100,
  "rms_norm_eps": 1e-05, "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 3,
  "tie_word_embeddings": true, "torch_dtype": "float32"})";

}  // namespace

std::filesystem::path ControllerTest::model_dir_;
std::string ControllerTest::fingerprint_;
std::string ControllerTest::tokenizer_fingerprint_;

void ControllerTest::SetUpTestSuite() {
  if (!model_dir_.empty()) return;
  static const testing::TempDirectory directory;  // until the process ends
  const std::filesystem::path config = directory / "shape.json";
  std::ofstream(config) << kConfigJson;
  SynthesizeOptions options;
  options.shape = config.string();
  options.output = directory / "model";
  options.num_threads = 1;
  const absl::StatusOr<SynthesizedModel> made = SynthesizeModel(options);
  ASSERT_TRUE(made.ok()) << made.status();
  model_dir_ = options.output;
  fingerprint_ = *(*Checkpoint::Open(options.output))->Fingerprint();
  tokenizer_fingerprint_ = *TokenizerFingerprint(options.output);
}

ControllerTest::ControllerTest() : model_(17, kNumSampledIds, {kEos}) {
  tokenizer_ = *Tokenizer::Load(model_dir_);
}

ControllerTest::~ControllerTest() {
  controller_.reset();
  replica_.reset();
}

ControllerOptions ControllerTest::DefaultOptions() {
  ControllerOptions options;
  options.model_dir = model_dir_;
  options.model_name = "model";
  options.block_size = kBlockSize;
  options.max_num_seqs = 8;
  options.max_batched_tokens = 32;
  options.max_model_len = kMaxModelLen;
  options.max_queued_requests = 100;
  options.version = "test";
  options.lease = absl::InfiniteDuration();  // fake ranks send no heartbeats
  options.observer = [this](const ControllerEvent& event) {
    absl::MutexLock lock(&events_mutex_);
    events_.push_back(event);
  };
  return options;
}

void ControllerTest::StartController(ControllerOptions options) {
  absl::StatusOr<std::unique_ptr<Controller>> started = Controller::Start(std::move(options));
  ASSERT_TRUE(started.ok()) << started.status();
  controller_ = *std::move(started);
  channel_ = NewChannel();
  stub_ = v1::Generation::NewStub(channel_);
}

std::shared_ptr<grpc::Channel> ControllerTest::NewChannel(bool small_window) {
  grpc::ChannelArguments arguments;
  if (small_window) arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", controller_->client_port()),
                                   grpc::InsecureChannelCredentials(), arguments);
}

FakeReplicaOptions ControllerTest::ReplicaOptions(int tp, int pp) {
  FakeReplicaOptions options;
  options.grid = *ProcessGrid::Create(tp, pp);
  options.hello.set_secret(controller_->secret());
  options.hello.set_epoch(epoch_);
  options.hello.set_host("testhost");
  options.hello.set_version("test");
  options.hello.set_model_fingerprint(fingerprint_);
  options.hello.set_tokenizer_fingerprint(tokenizer_fingerprint_);
  options.hello.mutable_numerics()->set_device("cpu");
  options.hello.mutable_numerics()->set_dtype("f32");
  v1::RankLimits& limits = *options.hello.mutable_limits();
  limits.set_block_size(kBlockSize);
  limits.set_max_num_seqs(8);
  limits.set_max_batched_tokens(32);
  limits.set_max_model_len(kMaxModelLen);
  options.rank.num_blocks = num_blocks_;
  options.rank.block_size = kBlockSize;
  options.rank.max_num_seqs = 8;
  options.rank.max_model_len = kMaxModelLen;
  options.rank.pipeline_depth = pp;
  options.step_time = step_time_;
  return options;
}

void ControllerTest::StartReplica(int tp, int pp) {
  replica_ = std::make_unique<FakeReplica>(controller_->worker_addresses().front(),
                                           ReplicaOptions(tp, pp), model_);
}

absl::Status ControllerTest::WaitServing() {
  return controller_->WaitServing(absl::Now() + absl::Seconds(20));
}

void ControllerTest::Serve(int tp, int pp) {
  ControllerOptions options = DefaultOptions();
  options.tensor_parallel = tp;
  options.pipeline_parallel = pp;
  Serve(std::move(options));
}

void ControllerTest::Serve(ControllerOptions options) {
  const int tp = options.tensor_parallel;
  const int pp = options.pipeline_parallel;
  StartController(std::move(options));
  StartReplica(tp, pp);
  ASSERT_TRUE(WaitServing().ok());
}

v1::GenerateRequest ControllerTest::Request(const std::string& prompt, int max_tokens) {
  v1::GenerateRequest request;
  request.set_text(prompt);
  request.mutable_stop()->set_max_tokens(max_tokens);
  request.mutable_stop()->set_ignore_eos(true);
  request.mutable_sampling()->set_seed(5);
  return request;
}

v1::GenerateRequest ControllerTest::LargeRequest() {
  v1::GenerateRequest request = Request("hello", 90);
  request.mutable_sampling()->set_num_outputs(16);
  request.mutable_output()->set_logprobs(20);
  return request;
}

Generated ControllerTest::Generate(const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, request);
  return ReadAll(*reader);
}

std::unique_ptr<OpenStream> ControllerTest::GenerateHeld(const v1::GenerateRequest& request) {
  replica_->Hold();
  auto stream = std::make_unique<OpenStream>();
  stream->reader = stub_->Generate(&stream->context, request);
  v1::GenerateEvent event;
  EXPECT_TRUE(stream->reader->Read(&event));
  return stream;
}

Generated ControllerTest::ReadAll(grpc::ClientReader<v1::GenerateEvent>& reader) {
  Generated generated;
  v1::GenerateEvent event;
  for (bool first = true; reader.Read(&event); first = false) {
    if (event.has_accepted()) {
      generated.accepted = event.accepted();
      generated.accepted_came_first = first;
    } else if (event.has_prompt_logprobs()) {
      EXPECT_EQ(event.prompt_logprobs().first_position(),
                static_cast<int32_t>(generated.prompt_logprobs.size()) + 1);
      for (const v1::Logprobs& each : event.prompt_logprobs().logprobs()) {
        generated.prompt_logprobs.push_back(each);
      }
    } else if (event.has_delta()) {
      Output& output = generated.outputs[event.delta().output_index()];
      EXPECT_FALSE(output.finished);
      const auto& ids = event.delta().token_ids();
      output.ids.insert(output.ids.end(), ids.begin(), ids.end());
      output.text += event.delta().text();
      for (const v1::Logprobs& each : event.delta().logprobs()) output.logprobs.push_back(each);
    } else if (event.has_finished()) {
      Output& output = generated.outputs[event.finished().output_index()];
      EXPECT_FALSE(output.finished);
      output.finished = event.finished();
      if (event.finished().has_usage()) generated.usage = event.finished().usage();
    }
  }
  generated.status = reader.Finish();
  return generated;
}

v1::GetStatusResponse ControllerTest::Status() {
  grpc::ClientContext context;
  v1::GetStatusResponse response;
  const grpc::Status status = stub_->GetStatus(&context, {}, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response;
}

bool ControllerTest::Eventually(
    const std::function<bool(const v1::GetStatusResponse&)>& condition) {
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  while (absl::Now() < deadline) {
    if (condition(Status())) return true;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return false;
}

bool ControllerTest::IsIdle() {
  return Eventually([](const v1::GetStatusResponse& status) {
    return status.num_running() == 0 && status.num_waiting() == 0 && status.kv_blocks_in_use() == 0;
  });
}

grpc::Status ControllerTest::CallRaw(const std::string& method, const std::string& bytes,
                                     std::string* response) {
  grpc::GenericStub stub(channel_);
  grpc::ClientContext context;
  grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer reply;
  grpc::CompletionQueue queue;
  auto call = stub.PrepareUnaryCall(&context, method, request, &queue);
  call->StartCall();
  grpc::Status status;
  call->Finish(&reply, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  grpc::Slice flat;
  if (response != nullptr && reply.DumpToSingleSlice(&flat).ok()) {
    response->assign(reinterpret_cast<const char*>(flat.begin()), flat.size());
  }
  return status;
}

std::vector<int32_t> ControllerTest::ExpectedIds(const v1::GenerateRequest& request, uint64_t seed,
                                                 uint32_t output) {
  const std::vector<int32_t> prompt = *tokenizer_->Encode(request.text(), {});
  SamplingParams params;
  params.seed = seed;
  params.max_tokens = request.stop().max_tokens();
  params.min_tokens = request.stop().min_tokens();
  params.ignore_eos = request.stop().ignore_eos();
  const auto& stops = request.stop().stop_token_ids();
  params.stop_token_ids.assign(stops.begin(), stops.end());
  return model_.Generate(prompt, params, output, kMaxModelLen);
}

std::string ControllerTest::Decode(const std::vector<int32_t>& ids, bool special) {
  return *tokenizer_->Decode(ids, special);
}

std::vector<ControllerEvent> ControllerTest::Events(ControllerEvent::Kind kind) {
  absl::MutexLock lock(&events_mutex_);
  std::vector<ControllerEvent> found;
  for (const ControllerEvent& event : events_) {
    if (event.kind == kind) found.push_back(event);
  }
  return found;
}

}  // namespace lockstep::testing
