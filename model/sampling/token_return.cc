#include "model/sampling/token_return.h"

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace lockstep {

absl::StatusOr<std::unique_ptr<TokenReturn>> TokenReturn::Create(Backend& backend, Communicator& pp,
                                                                 int64_t num_places) {
  LS_CHECK(backend.SummarizesLogits() && pp.size() > 1) << pp.size() << " stages";
  std::unique_ptr<TokenReturn> made(new TokenReturn(backend, pp, num_places));
  RETURN_IF_ERROR(made->Allocate());
  if (pp.rank() == 0) made->WarmUp();
  return made;
}

absl::Status TokenReturn::Allocate() {
  const int64_t bytes = MessageBytes(num_places_);
  if (pp_.rank() > 0) {
    host_tokens_.reserve(static_cast<size_t>(num_places_));
    ASSIGN_OR_RETURN(sent_, backend_.Allocate(bytes));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(tokens_, backend_.Allocate(MessagesBytes(num_places_, pp_.size())));
  ASSIGN_OR_RETURN(places_, backend_.Allocate(PlacesBytes(num_places_, pp_.size())));
  ASSIGN_OR_RETURN(table_, backend_.Allocate(bytes));
  return absl::OkStatus();
}

// First stage. Kernels may be loaded when they are first used.
void TokenReturn::WarmUp() {
  constexpr int32_t kPlaces[] = {0, -1};
  constexpr ChosenToken kToken;
  auto* const places = places_.as<int32_t>();
  backend_.CopyToDevice(places, kPlaces, sizeof(kPlaces));
  backend_.CopyToDevice(tokens_.data(), &kToken, sizeof(kToken));
  backend_.PlaceChosenTokens(tokens_.as<ChosenToken>(), places, 1, table_.as<ChosenToken>());
  backend_.TakeChosenTokens(table_.as<ChosenToken>(), places, 1, places + 1);
  backend_.Synchronize();
}

absl::Status TokenReturn::Send(const ChosenToken* chosen, int64_t count) {
  LS_CHECK(count >= 1 && count <= num_places_) << count << " tokens";
  return pp_.Send(0, chosen, MessageBytes(count));
}

absl::Status TokenReturn::Send(std::span<const int32_t> tokens) {
  const auto count = static_cast<int64_t>(tokens.size());
  LS_CHECK_LE(count, num_places_);
  host_tokens_.clear();
  for (const int32_t token : tokens) host_tokens_.push_back({.token = token});
  backend_.CopyToDevice(sent_.data(), host_tokens_.data(), MessageBytes(count));
  return Send(sent_.as<ChosenToken>(), count);
}

absl::Status TokenReturn::Expect(uint64_t step_id, std::span<const int32_t> places) {
  const auto count = static_cast<int64_t>(places.size());
  LS_CHECK(count >= 1 && count <= num_places_) << count << " tokens";
  if (std::ssize(expected_) == most_expected()) RETURN_IF_ERROR(AwaitOldest());
  const int64_t turn = (num_awaited_ + std::ssize(expected_)) % most_expected();
  backend_.CopyToDevice(places_.as<int32_t>() + turn * num_places_, places.data(),
                        count * int64_t{sizeof(int32_t)});
  RETURN_IF_ERROR(pp_.StartRecv(pp_.size() - 1, tokens_.as<ChosenToken>() + turn * num_places_,
                                MessageBytes(count)));
  expected_.push_back({.step_id = step_id, .count = count});
  return absl::OkStatus();
}

absl::Status TokenReturn::Await(uint64_t step_id) {
  while (!expected_.empty() && expected_.front().step_id <= step_id) {
    RETURN_IF_ERROR(AwaitOldest());
  }
  return absl::OkStatus();
}

absl::Status TokenReturn::AwaitOldest() {
  const Message message = expected_.front();
  expected_.pop_front();
  const int64_t turn = num_awaited_++ % most_expected();
  RETURN_IF_ERROR(pp_.FinishRecv(pp_.size() - 1));
  backend_.PlaceChosenTokens(tokens_.as<ChosenToken>() + turn * num_places_,
                             places_.as<int32_t>() + turn * num_places_, message.count,
                             table_.as<ChosenToken>());
  return absl::OkStatus();
}

}  // namespace lockstep
