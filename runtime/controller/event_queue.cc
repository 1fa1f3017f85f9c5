#include "runtime/controller/event_queue.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "google/protobuf/io/coded_stream.h"
#include "grpcpp/support/slice.h"
#include "kernels/base/check.h"
#include "runtime/controller/wire.h"

namespace lockstep {
namespace {

using google::protobuf::io::CodedOutputStream;

// Of GenerateEvent.delta on the wire: number and type, "length-delimited".
constexpr uint32_t kDeltaTag = v1::GenerateEvent::kDeltaFieldNumber << 3 | 2;
// Of tags, lengths and numbers around a message's tokens, text and log-probabilities.
constexpr int64_t kFrameBytes = 64;
constexpr int64_t kMaxIdBytes = 5;  // of a token id on the wire
// What the allocator and gRPC add to one that waits: the delta's arrays or the slice.
constexpr int64_t kAllocationBytes = 96;

}  // namespace

int64_t EventQueue::HeldBytes(const Waiting& waiting) {
  return static_cast<int64_t>(sizeof(Waiting)) + kAllocationBytes +
         waiting.delta.token_ids().Capacity() * static_cast<int64_t>(sizeof(int32_t)) +
         static_cast<int64_t>(waiting.delta.text().capacity() + waiting.logprobs.capacity() +
                              waiting.other.Length());
}

int64_t EventQueue::MaxMessageBytes(const Waiting& waiting) {
  return kFrameBytes + waiting.delta.token_ids_size() * kMaxIdBytes +
         static_cast<int64_t>(waiting.delta.text().size() + waiting.logprobs.size());
}

void EventQueue::Push(v1::GenerateEvent event) {
  if (event.has_delta()) return PushDelta(std::move(*event.mutable_delta()));
  if (event.has_prompt_logprobs() &&
      static_cast<int64_t>(event.ByteSizeLong()) > kMaxMessageBytes) {
    return PushPromptLogprobs(std::move(*event.mutable_prompt_logprobs()));
  }
  PushOther(event);
}

// Events of one output stay in order: a delta joins the last waiting one of its output, which no
// other event of that output follows (its finish comes after all deltas).
void EventQueue::PushDelta(v1::TokenDelta delta) {
  Waiting added;
  added.output = delta.output_index();
  if (delta.logprobs_size() > 0) {
    v1::TokenDelta logprobs;
    logprobs.mutable_logprobs()->Swap(delta.mutable_logprobs());
    logprobs.SerializeToString(&added.logprobs);
  }
  added.delta = std::move(delta);

  const auto last = std::find_if(waiting_.rbegin(), waiting_.rend(), [&](const Waiting& other) {
    return other.output == added.output;
  });
  if (last == waiting_.rend() ||
      MaxMessageBytes(*last) + MaxMessageBytes(added) > kMaxMessageBytes) {
    held_bytes_ += HeldBytes(added);
    waiting_.push_back(std::move(added));
    return;
  }
  held_bytes_ -= HeldBytes(*last);
  last->delta.mutable_token_ids()->MergeFrom(added.delta.token_ids());
  last->delta.mutable_text()->append(added.delta.text());
  last->logprobs.append(added.logprobs);
  held_bytes_ += HeldBytes(*last);
}

void EventQueue::PushPromptLogprobs(v1::PromptLogprobs all) {
  v1::GenerateEvent event;
  int64_t num_bytes = kFrameBytes;
  int32_t position = all.first_position();
  event.mutable_prompt_logprobs()->set_first_position(position);
  for (v1::Logprobs& each : *all.mutable_logprobs()) {
    const int64_t added = static_cast<int64_t>(each.ByteSizeLong()) + kMaxIdBytes + 1;
    if (event.prompt_logprobs().logprobs_size() > 0 && num_bytes + added > kMaxMessageBytes) {
      PushOther(event);
      event.Clear();
      event.mutable_prompt_logprobs()->set_first_position(position);
      num_bytes = kFrameBytes;
    }
    event.mutable_prompt_logprobs()->add_logprobs()->Swap(&each);
    num_bytes += added;
    ++position;
  }
  PushOther(event);
}

void EventQueue::PushOther(const v1::GenerateEvent& event) {
  Waiting added;
  added.other = SerializeMessage(event);
  held_bytes_ += HeldBytes(added);
  waiting_.push_back(std::move(added));
}

grpc::ByteBuffer EventQueue::Pop() {
  LS_CHECK(!waiting_.empty());
  held_bytes_ -= HeldBytes(waiting_.front());
  const Waiting next = std::move(waiting_.front());
  waiting_.pop_front();
  if (!next.output) return next.other;

  // As SerializeMessage writes a GenerateEvent, whose delta's last field is what is serialised
  // already.
  const size_t delta_bytes = next.delta.ByteSizeLong();
  const auto content_bytes = static_cast<uint32_t>(delta_bytes + next.logprobs.size());
  std::array<uint8_t, 16> head;
  uint8_t* head_end = CodedOutputStream::WriteVarint32ToArray(kDeltaTag, head.data());
  head_end = CodedOutputStream::WriteVarint32ToArray(content_bytes, head_end);
  const auto head_bytes = static_cast<size_t>(head_end - head.data());
  grpc::Slice slice(head_bytes + content_bytes);
  auto* bytes = const_cast<uint8_t*>(slice.begin());
  std::memcpy(bytes, head.data(), head_bytes);
  bytes = next.delta.SerializeWithCachedSizesToArray(bytes + head_bytes);
  std::memcpy(bytes, next.logprobs.data(), next.logprobs.size());
  return grpc::ByteBuffer(&slice, 1);
}

void EventQueue::Clear() {
  waiting_.clear();
  held_bytes_ = 0;
}

}  // namespace lockstep
