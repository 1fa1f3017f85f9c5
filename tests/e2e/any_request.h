// Requests over all that generation.proto offers, right ones and wrong ones, drawn from a seed.
#pragma once

#include <string>
#include <vector>

#include "tests/e2e/dice.h"
#include "tests/e2e/server_facts.h"

namespace lockstep::testing {

// A server must accept it. Its seed is set; the limits themselves are drawn, too.
v1::GenerateRequest AnyRequest(Dice& dice, const ServerFacts& facts);

// Text of all kinds: words, other scripts, emoji, control characters, what looks like a special
// token. May be empty.
std::string AnyText(Dice& dice);

struct WrongRequest {
  v1::GenerateRequest request;
  std::vector<std::string> named;  // what the refusal must say: field, value, limit
};
// A right request but for one value, just beyond its limit.
WrongRequest AnyWrongRequest(Dice& dice, const ServerFacts& facts);

}  // namespace lockstep::testing
