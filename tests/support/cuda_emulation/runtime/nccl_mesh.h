// One rank's links to the other ranks of an NCCL communicator, and its part in their operations.
//
// Ranks may be threads or processes of one machine: each pair is linked by a socket, so that a
// process that dies is missed as over a network. Used with the device's lock held; nothing waits:
// what cannot go on returns and is asked again.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace lockstep::cuda_emulation {

struct Operation {
  enum class Kind : uint32_t { kAllReduce, kReduceScatter, kAllGather, kSend, kRecv };
  Kind kind = Kind::kAllReduce;
  const void* from = nullptr;
  void* to = nullptr;
  size_t count = 0;  // NCCL's: of a reduce-scatter, the numbers that each rank ends with
  ncclDataType_t type = ncclFloat32;
  int peer = -1;

  bool collective() const { return kind != Kind::kSend && kind != Kind::kRecv; }
  size_t bytes() const;          // of count
  std::string Describe() const;  // "all-gather of 16 bytes"
};

class NcclMesh {
 public:
  NcclMesh(std::string name, int num_ranks, int rank);
  ~NcclMesh();
  NcclMesh(const NcclMesh&) = delete;
  NcclMesh& operator=(const NcclMesh&) = delete;

  int num_ranks() const { return num_ranks_; }
  int rank() const { return rank_; }
  // True once every pair that this rank is in is linked.
  bool Connect();
  // Takes what has arrived, so that the end of a peer is seen.
  void Listen() { Pump(); }
  // A peer has closed its link without a goodbye.
  bool broken() const { return broken_; }
  // Announces that the links will be closed.
  void SayGoodbye();
  void Close();

  // One operation under way. Operations of a rank are begun in the order of its stream.
  struct Part {
    Operation operation;
    bool begun = false;
    bool complete = false;  // for this rank
    bool done = false;      // nor do others wait for bytes that this rank holds back
    int64_t number = 0;     // of a send: how many its receiver will have acknowledged by then
    std::vector<char> sent =
        {};  // of a send: its buffer as it began, hence as it must be at the end
  };
  // Goes on as far as it can. "" or what the ranks do not agree on.
  std::string Advance(Part& part);

 private:
  enum class Frame : uint32_t { kCollective, kMessage, kAcknowledgement, kGoodbye };
  struct Header {
    Frame frame;
    Operation::Kind kind;
    uint32_t type;
    uint32_t unused;
    uint64_t count;
    uint64_t bytes;
  };
  struct Received {
    Header header;
    std::vector<char> data;
  };
  struct Link {
    int socket = -1;
    std::vector<char> outbox;
    size_t sent = 0;
    std::vector<char> inbox;  // of frames not complete yet
    std::deque<Received> collectives, messages;
    bool said_goodbye = false;
    int64_t num_messages_sent = 0, num_acknowledged = 0;
  };

  int MakeSocket(int rank, bool listen) const;
  void AcceptHigher();
  void Post(int peer, Frame frame, const Operation& operation, const void* data, size_t bytes);
  void Begin(Part& part);
  void Pump();
  void PumpLink(Link& link);
  void Parse(Link& link);
  bool Loses(const Operation& operation) const;
  std::string FinishCollective(Part& part);
  std::string FinishReceive(Part& part);
  bool Flushed() const;

  const std::string name_;
  const int num_ranks_;
  const int rank_;
  int listener_ = -1;
  std::vector<int> strangers_;  // accepted, their ranks not known yet
  std::vector<Link> links_;     // by rank
  bool broken_ = false;
};

}  // namespace lockstep::cuda_emulation
