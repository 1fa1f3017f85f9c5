// TLS of the two services and of those who dial them: certificate, key and the authorities trusted,
// read from PEM files and checked before anything listens or dials.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/support/channel_arguments.h"

namespace lockstep {

// Paths; empty = not given.
struct TlsFiles {
  std::string certificate;  // this side's chain, its own certificate first
  std::string key;          // of that certificate; PEM without pass phrase, mode 0600
  std::string authority;    // certificates that the other side's must be signed by
  bool empty() const { return certificate.empty() && key.empty() && authority.empty(); }
};

// The same as PEM text.
struct TlsIdentity {
  std::string certificate;
  std::string key;
  std::string authority;
};

// INVALID_ARGUMENT: no PEM certificate or key inside, a key that is encrypted or does not belong to
// the certificate, a certificate that has expired, only one of certificate and key. Else what
// ReadCredentialFile says. Each error names the file.
absl::StatusOr<TlsIdentity> LoadTlsIdentity(const TlsFiles& files);

// With an authority every client must show a certificate signed by it (mutual TLS): it is checked
// in the handshake, before one byte of HTTP/2 is read. TLS 1.2 or later, as gRPC has it.
std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const TlsIdentity& identity);

// How a channel is secured.
struct DialSecurity {
  std::optional<TlsIdentity> tls;  // none = in clear; without an authority the system's are trusted
  // The name the other side's certificate must carry; empty = the host that is dialled.
  std::string server_name;
};
// For address "HOST:PORT" or "unix:/path", which is always in clear. Adds to arguments what the
// channel needs besides.
std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(const DialSecurity& security,
                                                               const std::string& address,
                                                               grpc::ChannelArguments& arguments);

}  // namespace lockstep
