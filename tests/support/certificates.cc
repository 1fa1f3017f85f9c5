#include "tests/support/certificates.h"

#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/check.h"

namespace lockstep::testing {
namespace {

constexpr long kDaySeconds = 24 * 3600;

void AddExtension(X509& certificate, int id, const char* value) {
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, id, value);
  LS_CHECK(extension != nullptr);
  X509_add_ext(&certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

std::string ContentOf(BIO* bio) {
  char* data = nullptr;
  const long num_bytes = BIO_get_mem_data(bio, &data);
  std::string content(data, static_cast<size_t>(num_bytes));
  BIO_free(bio);
  return content;
}

std::string PemOf(X509& certificate) {
  BIO* bio = BIO_new(BIO_s_mem());
  PEM_write_bio_X509(bio, &certificate);
  return ContentOf(bio);
}

std::string PemOf(EVP_PKEY& key) {
  BIO* bio = BIO_new(BIO_s_mem());
  PEM_write_bio_PKCS8PrivateKey(bio, &key, nullptr, nullptr, 0, nullptr, nullptr);
  return ContentOf(bio);
}

}  // namespace

void WriteFile(const std::filesystem::path& path, const std::string& content, int mode) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  LS_CHECK_GE(fd, 0) << path.string();
  LS_CHECK_EQ(::write(fd, content.data(), content.size()), static_cast<ssize_t>(content.size()));
  ::fchmod(fd, static_cast<mode_t>(mode));
  ::close(fd);
}

TestAuthority::Certificate TestAuthority::Draft(const std::string& name, EVP_PKEY& key,
                                                int valid_days) {
  Certificate certificate(X509_new());
  uint64_t serial = 0;
  RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof(serial));
  X509_set_version(certificate.get(), 2);  // counted from 0: version 3
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate.get()), serial >> 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -30 * kDaySeconds);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), valid_days * kDaySeconds);
  X509_set_pubkey(certificate.get(), &key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  return certificate;
}

TestAuthority::TestAuthority(std::filesystem::path directory, const std::string& name)
    : directory_(std::move(directory)),
      file_((directory_ / (name + ".pem")).string()),
      key_(EVP_EC_gen("P-256")),
      certificate_(Draft(name, *key_, 1)) {
  X509_set_issuer_name(certificate_.get(), X509_get_subject_name(certificate_.get()));
  AddExtension(*certificate_, NID_basic_constraints, "critical,CA:TRUE");
  LS_CHECK_GT(X509_sign(certificate_.get(), key_.get(), EVP_sha256()), 0);
  WriteFile(file_, PemOf(*certificate_), 0644);
}

TlsFiles TestAuthority::Issue(const std::string& name, int valid_days) const {
  const Key key(EVP_EC_gen("P-256"));
  const Certificate certificate = Draft(name, *key, valid_days);
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(certificate_.get()));
  AddExtension(*certificate, NID_basic_constraints, "critical,CA:FALSE");
  AddExtension(*certificate, NID_subject_alt_name, "DNS:lockstep.test,IP:127.0.0.1");
  LS_CHECK_GT(X509_sign(certificate.get(), key_.get(), EVP_sha256()), 0);
  const TlsFiles files{(directory_ / (name + ".pem")).string(),
                       (directory_ / (name + ".key")).string(), file_};
  WriteFile(files.certificate, PemOf(*certificate), 0644);
  WriteFile(files.key, PemOf(*key), 0600);
  return files;
}

}  // namespace lockstep::testing
