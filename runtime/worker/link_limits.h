// Settings of the controller <-> rank link on which both ends must agree.
#pragma once

#include <cstdint>

namespace lockstep {

// A plan may carry the prompts of every slot it opens, a result the prompt logprobs of a whole
// step.
inline constexpr int kLinkMaxMessageBytes = 256 << 20;
// Of one sequence, so that a plan can open it: a token takes up to 5 bytes, and as much again for a
// block of one token.
inline constexpr int64_t kLinkMaxSequenceTokens = kLinkMaxMessageBytes / 16;

// Of the call's metadata: the launch's secret, which Hello repeats. gRPC holds a whole message
// before it looks at its length, so nothing is read of a call that does not show it.
inline constexpr char kLinkSecretKey[] = "lockstep-secret-bin";

// HTTP/2 keepalive pings. The controller pings ranks to notice one that was stopped; ranks ping the
// controller, less often, to notice a lost host. A server drops a client that pings more often than
// it permits, so the server must set GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS to at
// most kLinkRankKeepaliveMs / 2.
inline constexpr int kLinkControllerKeepaliveMs = 500;
inline constexpr int kLinkRankKeepaliveMs = 10000;
inline constexpr int kLinkRankKeepaliveTimeoutMs = 10000;

}  // namespace lockstep
