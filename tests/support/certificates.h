// Certificates made on the spot for tests: an authority and what it signs, written as PEM files.
#pragma once

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <filesystem>
#include <memory>
#include <string>

#include "runtime/security/tls.h"

namespace lockstep::testing {

// Its certificate lies in DIRECTORY/NAME.pem.
class TestAuthority {
 public:
  TestAuthority(std::filesystem::path directory, const std::string& name);
  // Writes DIRECTORY/NAME.pem and NAME.key (mode 0600), a certificate for NAME, the host
  // "lockstep.test" and 127.0.0.1, valid for a day or, with a negative number, expired. The
  // authority of the returned files is this one.
  TlsFiles Issue(const std::string& name, int valid_days = 1) const;
  std::string file() const { return file_; }

 private:
  struct Deleter {
    void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
    void operator()(X509* certificate) const { X509_free(certificate); }
  };
  using Key = std::unique_ptr<EVP_PKEY, Deleter>;
  using Certificate = std::unique_ptr<X509, Deleter>;
  static Certificate Draft(const std::string& name, EVP_PKEY& key, int valid_days);

  const std::filesystem::path directory_;
  const std::string file_;
  Key key_;
  Certificate certificate_;
};

// Writes a file of that mode.
void WriteFile(const std::filesystem::path& path, const std::string& content, int mode);

}  // namespace lockstep::testing
