#include "runtime/controller/event_queue.h"

#include <malloc.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/controller/wire.h"

namespace lockstep {
namespace {

constexpr int64_t kMiB = 1 << 20;

v1::Logprobs MakeLogprobs(int32_t token, int num_top) {
  v1::Logprobs logprobs;
  logprobs.mutable_token()->set_token_id(token);
  logprobs.mutable_token()->set_logprob(-1.5f);
  logprobs.mutable_token()->set_text("word");
  for (int i = 0; i < num_top; ++i) {
    v1::TokenLogprob& top = *logprobs.add_top();
    top.set_token_id(1000 + i);
    top.set_logprob(-0.25f * static_cast<float>(i));
    top.set_text("other");
  }
  return logprobs;
}

// A token of an output, with log-probabilities of num_top others unless negative.
v1::GenerateEvent Delta(uint32_t output, int32_t token, const std::string& text, int num_top = -1) {
  v1::GenerateEvent event;
  event.mutable_delta()->set_output_index(output);
  event.mutable_delta()->add_token_ids(token);
  event.mutable_delta()->set_text(text);
  if (num_top >= 0) *event.mutable_delta()->add_logprobs() = MakeLogprobs(token, num_top);
  return event;
}

v1::GenerateEvent Finish(uint32_t output) {
  v1::GenerateEvent event;
  event.mutable_finished()->set_output_index(output);
  return event;
}

// What a client puts together from a stream's messages.
struct Stream {
  std::map<uint32_t, v1::TokenDelta> outputs;
  std::map<uint32_t, int> num_deltas;
  std::vector<uint32_t> finished;
  v1::PromptLogprobs prompt;
  int64_t largest_message = 0;

  void Add(const v1::GenerateEvent& event) {
    if (event.has_delta()) {
      v1::TokenDelta& output = outputs[event.delta().output_index()];
      const std::string text = output.text() + event.delta().text();
      output.MergeFrom(event.delta());
      output.set_text(text);
      ++num_deltas[event.delta().output_index()];
    } else if (event.has_finished()) {
      finished.push_back(event.finished().output_index());
    } else if (event.has_prompt_logprobs()) {
      EXPECT_EQ(event.prompt_logprobs().first_position(), 1 + prompt.logprobs_size());
      prompt.mutable_logprobs()->MergeFrom(event.prompt_logprobs().logprobs());
    }
  }
  void TakeAll(EventQueue& queue) {
    while (!queue.empty()) {
      const grpc::ByteBuffer bytes = queue.Pop();
      largest_message = std::max(largest_message, static_cast<int64_t>(bytes.Length()));
      v1::GenerateEvent event;
      ASSERT_TRUE(ParseMessage(bytes, event).ok());
      Add(event);
    }
  }
};

TEST(EventQueueTest, OneEventComesOutAsItWentIn) {
  v1::GenerateEvent accepted;
  accepted.mutable_accepted()->set_request_id("a");
  v1::GenerateEvent text;
  text.mutable_delta()->set_text("rest");
  for (const v1::GenerateEvent& event :
       {Delta(3, 70000, "h\xc3\xa9", 20), Delta(0, 5, ""), text, Finish(2), accepted}) {
    EventQueue queue;
    queue.Push(event);
    v1::GenerateEvent taken;
    ASSERT_TRUE(ParseMessage(queue.Pop(), taken).ok());
    EXPECT_EQ(taken.DebugString(), event.DebugString());
    EXPECT_EQ(queue.held_bytes(), 0);
  }
}

TEST(EventQueueTest, MergedStreamsHoldWhatWasPushed) {
  std::mt19937 random(1);
  for (int round = 0; round < 20; ++round) {
    EventQueue queue;
    Stream pushed;
    Stream taken;
    for (int i = 0; i < 500; ++i) {
      const v1::GenerateEvent event =
          Delta(random() % 4, static_cast<int32_t>(random() % 100'000),
                std::string(random() % 5, 'x'), static_cast<int>(random() % 4) - 1);
      pushed.Add(event);
      queue.Push(event);
      if (random() % 100 == 0) taken.TakeAll(queue);
    }
    for (uint32_t output = 0; output < 4; ++output) queue.Push(Finish(output));
    taken.TakeAll(queue);
    EXPECT_THAT(taken.finished, ::testing::ElementsAre(0, 1, 2, 3));
    for (const auto& [output, delta] : pushed.outputs) {
      EXPECT_EQ(taken.outputs[output].DebugString(), delta.DebugString());
      EXPECT_LT(taken.num_deltas[output], 50);
    }
  }
}

TEST(EventQueueTest, NoMessageIsLargerThanClientsTake) {
  EventQueue queue;
  Stream pushed;
  for (int i = 0; i < 40'000; ++i) {
    const v1::GenerateEvent event = Delta(i % 2, i, "some text", i % 2 == 0 ? 20 : -1);
    pushed.Add(event);
    queue.Push(event);
  }
  Stream taken;
  taken.TakeAll(queue);
  EXPECT_LE(taken.largest_message, kMiB);
  EXPECT_GT(taken.largest_message, kMiB / 2);
  EXPECT_EQ(taken.outputs[0].SerializeAsString(), pushed.outputs[0].SerializeAsString());
  EXPECT_EQ(taken.outputs[1].SerializeAsString(), pushed.outputs[1].SerializeAsString());
}

TEST(EventQueueTest, PromptLogprobsOfALongStepAreSplit) {
  v1::GenerateEvent event;
  event.mutable_prompt_logprobs()->set_first_position(1);
  for (int i = 0; i < 16'000; ++i) {
    *event.mutable_prompt_logprobs()->add_logprobs() = MakeLogprobs(i, 20);
  }
  ASSERT_GT(event.ByteSizeLong(), 4 * kMiB);
  EventQueue queue;
  queue.Push(event);
  Stream taken;
  taken.TakeAll(queue);
  EXPECT_LE(taken.largest_message, kMiB);
  ASSERT_EQ(taken.prompt.logprobs_size(), 16'000);
  for (int i = 0; i < 16'000; ++i) EXPECT_EQ(taken.prompt.logprobs(i).token().token_id(), i);
}

// False under sanitizers, whose allocators tell nothing.
bool AllocatorTellsWhatIsHeld() {
  const size_t before = mallinfo2().uordblks;
  const std::string block(10'000, 'x');
  return mallinfo2().uordblks >= before + block.size();
}

TEST(EventQueueTest, HeldBytesAreTheMemoryThatIsHeld) {
  if (!AllocatorTellsWhatIsHeld()) GTEST_SKIP() << "the allocator does not tell what is held";
  for (const int num_top : {-1, 0, 5, 20}) {
    for (const int num_outputs : {1, 64}) {
      SCOPED_TRACE(num_top);
      EventQueue queue;
      const size_t before = mallinfo2().uordblks;
      for (uint32_t i = 0; queue.held_bytes() < 8 * kMiB; ++i) {
        queue.Push(Delta(i % num_outputs, static_cast<int32_t>(i), "text", num_top));
      }
      const auto held = static_cast<double>(mallinfo2().uordblks - before);
      EXPECT_LT(held, 1.1 * static_cast<double>(queue.held_bytes()));
      EXPECT_GT(held, 0.9 * static_cast<double>(queue.held_bytes()));
      queue.Clear();
      EXPECT_EQ(queue.held_bytes(), 0);
    }
  }
}

}  // namespace
}  // namespace lockstep
