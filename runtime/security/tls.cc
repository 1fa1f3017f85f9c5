#include "runtime/security/tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/base/status_macros.h"
#include "runtime/security/credential_file.h"

namespace lockstep {
namespace {

constexpr char kCertificate[] = "TLS certificate";
constexpr char kKey[] = "TLS key";
constexpr char kAuthority[] = "TLS authority";

struct OpenSslDeleter {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
template <typename T>
using OpenSsl = std::unique_ptr<T, OpenSslDeleter>;

OpenSsl<BIO> Reader(const std::string& text) {
  return OpenSsl<BIO>(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

absl::Status Wrong(absl::string_view what, const std::string& path, absl::string_view why) {
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat(what, " ", path, " ", why));
}

// The first certificate of the file: the side's own, or any of the authorities.
absl::StatusOr<OpenSsl<X509>> FirstCertificate(absl::string_view what, const std::string& path,
                                               const std::string& pem) {
  const OpenSsl<BIO> reader = Reader(pem);
  OpenSsl<X509> first(PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr));
  if (first == nullptr) return Wrong(what, path, "holds no certificate in PEM");
  return first;
}

// A key with a pass phrase is refused: nobody is there to type it.
int NoPassPhrase(char*, int, int, void*) { return -1; }

absl::Status CheckKey(const TlsFiles& files, const std::string& pem, X509& certificate) {
  const OpenSsl<BIO> reader = Reader(pem);
  const OpenSsl<EVP_PKEY> key(
      PEM_read_bio_PrivateKey(reader.get(), nullptr, NoPassPhrase, nullptr));
  if (key == nullptr) {
    return Wrong(kKey, files.key, "holds no private key in PEM without a pass phrase");
  }
  if (X509_check_private_key(&certificate, key.get()) != 1) {
    return Wrong(kKey, files.key,
                 absl::StrCat("does not belong to the certificate ", files.certificate));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TlsIdentity> LoadTlsIdentity(const TlsFiles& files) {
  TlsIdentity identity;
  if (files.certificate.empty() != files.key.empty()) {
    return absl::InvalidArgumentError(
        "a TLS certificate and its key go together: one of them is not given");
  }
  if (!files.authority.empty()) {
    ASSIGN_OR_RETURN(identity.authority,
                     ReadCredentialFile(files.authority, kAuthority, FileAccess::kPublic));
    RETURN_IF_ERROR(FirstCertificate(kAuthority, files.authority, identity.authority).status());
  }
  if (files.certificate.empty()) return identity;
  ASSIGN_OR_RETURN(identity.certificate,
                   ReadCredentialFile(files.certificate, kCertificate, FileAccess::kPublic));
  ASSIGN_OR_RETURN(const OpenSsl<X509> certificate,
                   FirstCertificate(kCertificate, files.certificate, identity.certificate));
  if (X509_cmp_current_time(X509_get0_notAfter(certificate.get())) < 0) {
    return Wrong(kCertificate, files.certificate, "has expired");
  }
  ASSIGN_OR_RETURN(identity.key, ReadCredentialFile(files.key, kKey, FileAccess::kPrivate));
  RETURN_IF_ERROR(CheckKey(files, identity.key, *certificate));
  return identity;
}

std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const TlsIdentity& identity) {
  grpc::SslServerCredentialsOptions options(
      identity.authority.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                 : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = identity.authority;
  options.pem_key_cert_pairs.push_back({identity.key, identity.certificate});
  return grpc::SslServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(const DialSecurity& security,
                                                               const std::string& address,
                                                               grpc::ChannelArguments& arguments) {
  if (!security.tls || absl::StartsWith(address, "unix:")) {
    return grpc::InsecureChannelCredentials();
  }
  if (!security.server_name.empty()) arguments.SetSslTargetNameOverride(security.server_name);
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = security.tls->authority;
  options.pem_private_key = security.tls->key;
  options.pem_cert_chain = security.tls->certificate;
  return grpc::SslCredentials(options);
}

}  // namespace lockstep
