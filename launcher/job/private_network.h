// A network of its own for a job whose processes all run on this host: nothing but loopback.
//
// mpirun listens on a random port of every interface and cannot be told otherwise (Open MPI 4.1,
// orte/mca/oob/tcp). Ranks on one host need no network: they share memory and reach the controller
// through a Unix socket, which does not care about network namespaces.
#pragma once

#include <string>

namespace lockstep {

class PrivateNetwork {
 public:
  PrivateNetwork();

  // Between fork and exec, system calls only: moves this process into a new network namespace (in a
  // new user namespace where the system withholds the right to make one otherwise) and brings
  // loopback up. On failure the process may be left without a network.
  bool Enter() const;
  // Tries Enter in a short-lived child: containers and hardened systems forbid it.
  bool IsPossible() const;

 private:
  std::string uid_map_;
  std::string gid_map_;
};

}  // namespace lockstep
