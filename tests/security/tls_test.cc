#include "runtime/security/tls.h"

#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_directory.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class TlsTest : public ::testing::Test {
 protected:
  TlsTest() {
    authority_ = std::make_unique<TestAuthority>(scratch_.path(), "ca");
    files_ = authority_->Issue("server");
  }
  static std::string ErrorOf(const TlsFiles& files) {
    return std::string(LoadTlsIdentity(files).status().message());
  }

  const testing::TempDirectory scratch_;
  std::unique_ptr<TestAuthority> authority_;
  TlsFiles files_;
};

TEST_F(TlsTest, GoodFilesBecomeAnIdentity) {
  const auto identity = LoadTlsIdentity(files_);
  ASSERT_TRUE(identity.ok()) << identity.status();
  EXPECT_THAT(identity->certificate, HasSubstr("BEGIN CERTIFICATE"));
  EXPECT_THAT(identity->key, HasSubstr("PRIVATE KEY"));
  EXPECT_THAT(identity->authority, HasSubstr("BEGIN CERTIFICATE"));
}

TEST_F(TlsTest, AnAuthorityAloneIsEnough) {
  EXPECT_TRUE(LoadTlsIdentity({.certificate = "", .key = "", .authority = files_.authority}).ok());
}

TEST_F(TlsTest, WrongFilesAreNamedWithWhatIsWrong) {
  TlsFiles files = files_;
  files.certificate = (scratch_ / "absent").string();
  EXPECT_THAT(ErrorOf(files), AllOf(HasSubstr(files.certificate), HasSubstr("No such file")));
  WriteFile(scratch_ / "noise", "not a certificate", 0600);
  files.certificate = (scratch_ / "noise").string();
  EXPECT_THAT(ErrorOf(files), AllOf(HasSubstr("noise"), HasSubstr("no certificate in PEM")));
  files = files_;
  files.key = (scratch_ / "noise").string();
  EXPECT_THAT(ErrorOf(files), AllOf(HasSubstr("noise"), HasSubstr("no private key in PEM")));
  files = files_;
  files.authority = (scratch_ / "noise").string();
  EXPECT_THAT(ErrorOf(files), AllOf(HasSubstr("authority"), HasSubstr("noise")));
}

TEST_F(TlsTest, AKeyOfAnotherCertificateIsRefused) {
  TlsFiles files = files_;
  files.key = authority_->Issue("other").key;
  EXPECT_THAT(ErrorOf(files),
              AllOf(HasSubstr("other.key"), HasSubstr("does not belong"), HasSubstr("server.pem")));
}

TEST_F(TlsTest, AKeyThatOthersCanReadIsRefused) {
  fs::permissions(files_.key, fs::perms::others_read, fs::perm_options::add);
  EXPECT_THAT(ErrorOf(files_), AllOf(HasSubstr(files_.key), HasSubstr("chmod 600")));
}

TEST_F(TlsTest, AnExpiredCertificateIsRefused) {
  EXPECT_THAT(ErrorOf(authority_->Issue("old", -1)), HasSubstr("has expired"));
}

TEST_F(TlsTest, ACertificateWithoutItsKeyIsRefused) {
  EXPECT_THAT(ErrorOf({.certificate = files_.certificate, .key = "", .authority = ""}),
              HasSubstr("go together"));
}

}  // namespace
}  // namespace lockstep::testing
