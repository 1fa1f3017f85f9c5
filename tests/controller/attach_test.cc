// Clients that come back to their requests: after a broken stream, after a restart of the
// controller, in another's place.
#include <filesystem>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "tests/controller/controller_fixture.h"
#include "tests/support/temp_directory.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class AttachTest : public ControllerTest {
 protected:
  ~AttachTest() override { controller_.reset(); }

  void ServeWithJournal() {
    ControllerOptions options = DefaultOptions();
    options.journal = (scratch_ / "journal").string();
    Serve(std::move(options));
  }
  void Restart() {
    replica_.reset();
    controller_.reset();
    ServeWithJournal();
  }

  v1::GenerateRequest Named(const std::string& name, int max_tokens) {
    v1::GenerateRequest request = Request("hello", max_tokens);
    request.set_request_id(name);
    return request;
  }
  // Of the next request: a step that was planned before its predecessor's end was known counts,
  // too, and must be over.
  void HoldAfter(int64_t num_steps) {
    EXPECT_TRUE(Eventually(
        [&](const auto& status) { return status.num_steps() == replica_->num_steps(); }));
    replica_->HoldAfter(num_steps);
  }
  // Reads until each output has at least that many tokens, then breaks the stream. The request does
  // not finish before, however late this client is.
  Generated Begin(const v1::GenerateRequest& request, size_t num_tokens) {
    // Tokens that may begin a stop string are held back.
    const size_t num_held_back = request.stop().stop_strings().empty() ? 0 : 4;
    HoldAfter(static_cast<int64_t>(num_tokens + num_held_back));
    grpc::ClientContext context;
    const auto reader = stub().Generate(&context, request);
    Generated generated;
    const size_t num_outputs = std::max(1, request.sampling().num_outputs());
    v1::GenerateEvent event;
    const auto has_enough = [&] {
      if (generated.outputs.size() < num_outputs) return num_tokens == 0;
      return std::all_of(generated.outputs.begin(), generated.outputs.end(),
                         [&](const auto& each) { return each.second.ids.size() >= num_tokens; });
    };
    while (reader->Read(&event)) {
      if (event.has_accepted()) generated.accepted = event.accepted();
      if (event.has_delta()) Take(event.delta(), generated.outputs[event.delta().output_index()]);
      if (has_enough()) break;
    }
    context.TryCancel();
    while (reader->Read(&event)) {
    }
    reader->Finish();
    EXPECT_TRUE(Eventually([](const auto& status) { return status.num_running() == 0; }));
    replica_->Release();
    EXPECT_TRUE(IsIdle());
    return generated;
  }
  static void Take(const v1::TokenDelta& delta, Output& output) {
    output.ids.insert(output.ids.end(), delta.token_ids().begin(), delta.token_ids().end());
    output.text += delta.text();
    output.logprobs.insert(output.logprobs.end(), delta.logprobs().begin(), delta.logprobs().end());
  }
  static constexpr size_t kAll = std::numeric_limits<size_t>::max();
  // Reads until the only output has so many tokens, or the stream has ended.
  static void TakeTokens(grpc::ClientReader<v1::GenerateEvent>& reader, size_t num_tokens,
                         Output& output) {
    v1::GenerateEvent event;
    while (output.ids.size() < num_tokens && reader.Read(&event)) {
      if (event.has_delta()) Take(event.delta(), output);
    }
  }
  Generated Attach(const std::string& name, const Generated& so_far) {
    v1::AttachRequest request;
    request.set_request_id(name);
    for (const auto& [index, output] : so_far.outputs) {
      while (request.received_size() <= static_cast<int>(index)) request.add_received();
      v1::ReceivedOutput& received = *request.mutable_received(static_cast<int>(index));
      received.mutable_token_ids()->Add(output.ids.begin(), output.ids.end());
      received.set_num_text_bytes(static_cast<int64_t>(output.text.size()));
    }
    grpc::ClientContext context;
    const auto reader = stub().Attach(&context, request);
    reader->WaitForInitialMetadata();  // with the first event: it has attached
    replica_->Release();
    return ReadAll(*reader);
  }
  static Output Joined(const Generated& first, const Generated& rest, uint32_t index) {
    Output joined;
    for (const Generated* part : {&first, &rest}) {
      const auto found = part->outputs.find(index);
      if (found == part->outputs.end()) continue;
      const Output& output = found->second;
      joined.ids.insert(joined.ids.end(), output.ids.begin(), output.ids.end());
      joined.text += output.text;
      joined.logprobs.insert(joined.logprobs.end(), output.logprobs.begin(), output.logprobs.end());
      if (output.finished) joined.finished = output.finished;
    }
    return joined;
  }
  void ExpectSame(const Generated& whole, const Generated& first, const Generated& rest) {
    EXPECT_TRUE(rest.status.ok()) << rest.status.error_message();
    for (const auto& [index, expected] : whole.outputs) {
      const Output joined = Joined(first, rest, index);
      EXPECT_EQ(joined.ids, expected.ids);
      EXPECT_EQ(joined.text, expected.text);
      EXPECT_EQ(joined.logprobs.size(), expected.logprobs.size());
      ASSERT_TRUE(joined.finished);
      EXPECT_EQ(joined.finished->reason(), expected.finished->reason());
    }
    EXPECT_EQ(rest.usage->num_output_tokens(), whole.usage->num_output_tokens());
  }

  const testing::TempDirectory scratch_;
};

TEST_F(AttachTest, ABrokenStreamGoesOnAfterAnyToken) {
  ServeWithJournal();
  const Generated whole = Generate(Named("whole", 12));
  EXPECT_TRUE(whole.accepted->attachable());
  Restart();
  for (size_t num_tokens = 0; num_tokens < 11; ++num_tokens) {
    SCOPED_TRACE(num_tokens);
    const std::string name = absl::StrCat("r", num_tokens);
    const Generated first = Begin(Named(name, 12), num_tokens);
    const Generated rest = Attach(name, first);
    EXPECT_TRUE(rest.accepted_came_first);
    EXPECT_EQ(rest.accepted->request_id(), name);
    EXPECT_EQ(rest.accepted->seed(), 5u);
    ExpectSame(whole, first, rest);
  }
}

TEST_F(AttachTest, ARestartedControllerGoesOnWithADrawnSeed) {
  ServeWithJournal();
  v1::GenerateRequest request = Named("r", 30);
  request.mutable_sampling()->clear_seed();
  const Generated first = Begin(request, 4);
  Restart();
  EXPECT_THAT(Events(ControllerEvent::Kind::kWarning).back().message,
              HasSubstr("1 unfinished requests"));
  const Generated rest = Attach("r", first);
  EXPECT_TRUE(rest.status.ok()) << rest.status.error_message();
  const Output joined = Joined(first, rest, 0);
  EXPECT_EQ(joined.ids, ExpectedIds(request, first.accepted->seed()));
  EXPECT_EQ(joined.text, Decode(joined.ids));
}

// Where the same tokens would not come once more (GPUs that are not deterministic), the text that
// the client has is not spliced with another one.
TEST_F(AttachTest, AnOutputGoesOnFromWhatTheClientHas) {
  ServeWithJournal();
  const v1::GenerateRequest request = Named("r", 12);
  Generated first = Begin(request, 4);
  Output& output = first.outputs[0];
  output.ids.back() = output.ids.back() == 5 ? 6 : 5;
  output.text = Decode(output.ids);
  const Output joined = Joined(first, Attach("r", first), 0);

  uint64_t prefix = engine::FakeLanguageModel::kEmpty;
  const std::vector<int32_t> prompt = *tokenizer_->Encode(request.text(), {});
  for (const int32_t id : prompt) {
    prefix = engine::FakeLanguageModel::Extend(prefix, id);
  }
  SamplingParams sampling;
  sampling.seed = 5;
  sampling.max_tokens = 12;
  ASSERT_GT(joined.ids.size(), output.ids.size());
  for (size_t i = 0; i < joined.ids.size(); ++i) {
    if (i >= output.ids.size()) {
      EXPECT_EQ(joined.ids[i], model_.Sample(prefix, sampling, 0, static_cast<int64_t>(i)));
    }
    prefix = engine::FakeLanguageModel::Extend(prefix, joined.ids[i]);
  }
  EXPECT_EQ(joined.text, Decode(joined.ids));
}

// Its finish, or the whole end of its stream, may be all that a client lacks.
TEST_F(AttachTest, WhatWasReceivedToItsEndOnlyEnds) {
  ServeWithJournal();
  v1::GenerateRequest by_length = Named("length", 12);
  v1::GenerateRequest by_token = by_length;
  by_token.set_request_id("token");
  by_token.mutable_stop()->add_stop_token_ids(ExpectedIds(by_length, 5)[8]);
  for (v1::GenerateRequest request : {by_length, by_token}) {
    SCOPED_TRACE(request.request_id());
    const Generated whole = Generate(request);
    request.set_request_id(absl::StrCat("again by ", request.request_id()));
    Begin(request, 3);
    Generated all = whole;
    all.outputs[0].finished.reset();
    const Generated rest = Attach(request.request_id(), all);
    EXPECT_TRUE(rest.status.ok()) << rest.status.error_message();
    EXPECT_TRUE(rest.outputs.at(0).ids.empty());
    EXPECT_EQ(rest.outputs.at(0).text, "");
    ExpectSame(whole, all, rest);
    EXPECT_TRUE(IsIdle());
  }
}

TEST_F(AttachTest, SeveralOutputsStopStringsAndLogprobsGoOnToo) {
  ServeWithJournal();
  v1::GenerateRequest request = Named("whole", 40);
  request.mutable_sampling()->set_num_outputs(3);
  request.mutable_output()->set_logprobs(2);
  for (const char* stop : {"ab", "q", "zz"}) request.mutable_stop()->add_stop_strings(stop);
  const Generated whole = Generate(request);
  request.set_request_id("r");
  const Generated first = Begin(request, 3);
  ExpectSame(whole, first, Attach("r", first));
}

TEST_F(AttachTest, TheNewStreamTakesTheOldOnesPlace) {
  ServeWithJournal();
  const v1::GenerateRequest request = Named("r", 30);
  HoldAfter(3);
  grpc::ClientContext context;
  const auto old = stub().Generate(&context, request);
  Generated first;
  TakeTokens(*old, 3, first.outputs[0]);
  const Generated rest = Attach("r", first);
  EXPECT_EQ(Joined(first, rest, 0).ids, ExpectedIds(request, 5));
  Output ignored;
  TakeTokens(*old, kAll, ignored);
  const grpc::Status ended = old->Finish();
  EXPECT_EQ(ended.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(ended.error_message(), HasSubstr("another client attached"));
  EXPECT_TRUE(IsIdle());
}

TEST_F(AttachTest, AServerThatStopsInOrderKeepsWhatItEnded) {
  ServeWithJournal();
  const v1::GenerateRequest request = Named("r", 30);
  HoldAfter(3);
  grpc::ClientContext context;
  const auto reader = stub().Generate(&context, request);
  Generated first;
  TakeTokens(*reader, 3, first.outputs[0]);
  controller_->Shutdown();
  TakeTokens(*reader, kAll, first.outputs[0]);
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  Restart();
  EXPECT_EQ(Joined(first, Attach("r", first), 0).ids, ExpectedIds(request, 5));
}

// Its client may not have heard of it.
TEST_F(AttachTest, WhatFinishedCanBeAttachedToForAWhile) {
  ServeWithJournal();
  const Generated whole = Generate(Named("r", 30));
  EXPECT_TRUE(whole.status.ok());
  Generated first;
  first.outputs[0].ids.assign(whole.outputs.at(0).ids.begin(), whole.outputs.at(0).ids.begin() + 5);
  const Generated rest = Attach("r", first);
  EXPECT_TRUE(rest.status.ok()) << rest.status.error_message();
  EXPECT_EQ(Joined(first, rest, 0).ids, whole.outputs.at(0).ids);
}

TEST_F(AttachTest, WhatWasAbortedIsGone) {
  ServeWithJournal();
  Begin(Named("aborted", 30), 2);
  grpc::ClientContext context;
  v1::AbortRequest abort;
  abort.set_request_id("aborted");
  v1::AbortResponse response;
  EXPECT_TRUE(stub().Abort(&context, abort, &response).ok());
  EXPECT_FALSE(response.was_running());
  EXPECT_THAT(Attach(std::string(100'000, 'x'), {}).status.error_message(),
              HasSubstr("request_id has 100000 bytes, at most"));
  for (const char* name : {"aborted", "never was"}) {
    const grpc::Status status = Attach(name, {}).status;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND) << name;
    EXPECT_THAT(status.error_message(), HasSubstr(name));
  }
}

TEST_F(AttachTest, WrongNumbersAreNamed) {
  ServeWithJournal();
  Begin(Named("r", 30), 2);
  Generated two;
  two.outputs[1].ids = {1};
  const grpc::Status status = Attach("r", two).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("received has 2 entries"));
  Generated strange;
  strange.outputs[0].ids = {1, 1 << 20};
  const grpc::Status refused = Attach("r", strange).status;
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), HasSubstr("token id 1048576"));
  Generated text_alone;
  text_alone.outputs[0].text = "hello";
  EXPECT_THAT(Attach("r", text_alone).status.error_message(),
              HasSubstr("received[0] has 5 bytes of text, but no token_ids"));
  EXPECT_TRUE(Attach("r", {}).status.ok());  // nothing was lost
}

TEST_F(AttachTest, ARefusedOneLeavesTheStreamAlone) {
  ServeWithJournal();
  const v1::GenerateRequest request = Named("r", 30);
  HoldAfter(3);
  grpc::ClientContext context;
  const auto reader = stub().Generate(&context, request);
  Generated first;
  TakeTokens(*reader, 3, first.outputs[0]);
  Generated strange;
  strange.outputs[0].ids = {1, 1 << 20};
  EXPECT_EQ(Attach("r", strange).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  TakeTokens(*reader, kAll, first.outputs[0]);
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(first.outputs[0].ids, ExpectedIds(request, 5));
}

TEST_F(AttachTest, WithoutAJournalNothingCanBeAttached) {
  Serve();
  EXPECT_FALSE(Generate(Named("r", 3)).accepted->attachable());
  EXPECT_EQ(Attach("r", {}).status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

}  // namespace
}  // namespace lockstep::testing
