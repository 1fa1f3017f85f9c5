// A controller, a fake replica and clients in one process, over a Unix socket and loopback.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "lockstep/v1/generation.grpc.pb.h"
#include "model/tokenizer/tokenizer.h"
#include "runtime/controller/controller.h"
#include "tests/controller/fake_replica.h"

namespace lockstep::testing {

// One output as a client sees it.
struct Output {
  std::vector<int32_t> ids;
  std::string text;
  std::vector<v1::Logprobs> logprobs;
  std::optional<v1::OutputFinished> finished;
};

// One stream, read to its end.
struct Generated {
  grpc::Status status;
  std::optional<v1::PromptAccepted> accepted;
  bool accepted_came_first = false;
  std::vector<v1::Logprobs> prompt_logprobs;
  std::map<uint32_t, Output> outputs;
  std::optional<v1::Usage> usage;
};

// A stream that is under way.
struct OpenStream {
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::GenerateEvent>> reader;
};

class ControllerTest : public ::testing::Test {
 protected:
  static constexpr int kBlockSize = 4;
  static constexpr int kNumBlocks = 64;
  static constexpr int kMaxModelLen = 100;
  static constexpr int32_t kVocabSize = 400;
  // Of which the fake model chooses: single ASCII characters, the special ids below, nothing else.
  static constexpr int32_t kNumSampledIds = 90;
  static constexpr int32_t kBos = 1;
  static constexpr int32_t kEos = 3;

  static void SetUpTestSuite();  // writes the model once
  ControllerTest();
  ~ControllerTest() override;

  ControllerOptions DefaultOptions();
  void StartController(ControllerOptions options);
  void StartReplica(int tp = 1, int pp = 1);
  absl::Status WaitServing();
  // Both, and waits until they serve.
  void Serve(int tp = 1, int pp = 1);
  void Serve(ControllerOptions options);
  FakeReplicaOptions ReplicaOptions(int tp, int pp);

  v1::GenerateRequest Request(const std::string& prompt, int max_tokens);
  // Its stream is more than may be under way to a client (of NewChannel with a small window).
  v1::GenerateRequest LargeRequest();
  Generated Generate(const v1::GenerateRequest& request);
  static Generated ReadAll(grpc::ClientReader<v1::GenerateEvent>& reader);
  // The controller has accepted it, and no step's result comes before replica_->Release().
  std::unique_ptr<OpenStream> GenerateHeld(const v1::GenerateRequest& request);
  v1::GetStatusResponse Status();
  // Polls GetStatus until condition holds; false after 10 s.
  bool Eventually(const std::function<bool(const v1::GetStatusResponse&)>& condition);
  bool IsIdle();
  v1::Generation::Stub& stub() { return *stub_; }
  // small_window: the client takes 64 KiB without being asked, no more.
  std::shared_ptr<grpc::Channel> NewChannel(bool small_window = false);

  // One message of any bytes to any method; the response as bytes, if wanted.
  grpc::Status CallRaw(const std::string& method, const std::string& bytes,
                       std::string* response = nullptr);

  // What output 0 of this request must be.
  std::vector<int32_t> ExpectedIds(const v1::GenerateRequest& request, uint64_t seed,
                                   uint32_t output = 0);
  std::string Decode(const std::vector<int32_t>& ids, bool special = false);
  std::vector<ControllerEvent> Events(ControllerEvent::Kind kind);

  engine::FakeLanguageModel model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Controller> controller_;
  std::unique_ptr<FakeReplica> replica_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Generation::Stub> stub_;
  uint64_t epoch_ = 1;
  absl::Duration step_time_ = absl::ZeroDuration();
  int num_blocks_ = kNumBlocks;
  absl::Mutex events_mutex_;
  std::vector<ControllerEvent> events_;

  static std::filesystem::path model_dir_;
  static std::string fingerprint_;
  static std::string tokenizer_fingerprint_;
};

}  // namespace lockstep::testing
