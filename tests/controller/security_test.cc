// Who may use the two services: TLS, mutual TLS, API tokens, addresses that others can reach.
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "lockstep/v1/health.grpc.pb.h"
#include "runtime/worker/controller_link.h"
#include "tests/controller/controller_fixture.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_directory.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
namespace health = ::grpc::health::v1;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kToken[] = "first-token-0123456789";
constexpr char kOtherToken[] = "second-token-987654321";
constexpr absl::Duration kShort = absl::Milliseconds(500);

class SecurityTest : public ControllerTest {
 protected:
  SecurityTest() {
    authority_ = std::make_unique<TestAuthority>(scratch_.path(), "ca");
    stranger_ = std::make_unique<TestAuthority>(scratch_.path(), "stranger-ca");
    server_ = authority_->Issue("server");
  }

  static TlsIdentity Load(TlsFiles files, bool with_authority = true) {
    if (!with_authority) files.authority.clear();
    return *LoadTlsIdentity(files);
  }
  static TlsIdentity Trusting(const TestAuthority& authority) {
    return *LoadTlsIdentity({.certificate = "", .key = "", .authority = authority.file()});
  }

  // GetServerInfo over a connection of its own.
  grpc::Status Call(const DialSecurity& security, const std::string& authorization = "") {
    return CallAt(absl::StrCat("127.0.0.1:", controller_->client_port()), security, authorization);
  }
  grpc::Status CallAt(const std::string& address, const DialSecurity& security,
                      const std::string& authorization = "") {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto credentials = ChannelCredentialsOf(security, address, arguments);
    const auto stub =
        v1::Generation::NewStub(grpc::CreateCustomChannel(address, credentials, arguments));
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(20)));
    if (!authorization.empty()) context.AddMetadata(kAuthorizationHeader, authorization);
    v1::GetServerInfoResponse response;
    return stub->GetServerInfo(&context, {}, &response);
  }
  void ExpectNoConnection(const DialSecurity& security) {
    EXPECT_EQ(Call(security).error_code(), grpc::StatusCode::UNAVAILABLE);
  }

  void StartWithTokens() {
    ControllerOptions options = DefaultOptions();
    options.api_tokens = *ApiTokens::Parse(absl::StrCat(kToken, "\n", kOtherToken));
    StartController(std::move(options));
  }

  const testing::TempDirectory scratch_;
  std::unique_ptr<TestAuthority> authority_;
  std::unique_ptr<TestAuthority> stranger_;
  TlsFiles server_;
};

// --- TLS of the clients' service ---

TEST_F(SecurityTest, ClientsThatTrustTheAuthorityConnect) {
  ControllerOptions options = DefaultOptions();
  options.client_tls = Load(server_, /*with_authority=*/false);
  StartController(std::move(options));
  const grpc::Status by_address = Call({Trusting(*authority_), ""});
  EXPECT_TRUE(by_address.ok()) << by_address.error_message();
  EXPECT_TRUE(Call({Trusting(*authority_), "lockstep.test"}).ok());
}

TEST_F(SecurityTest, AWrongAuthorityAWrongNameAndNoTlsDoNot) {
  ControllerOptions options = DefaultOptions();
  options.client_tls = Load(server_, /*with_authority=*/false);
  StartController(std::move(options));
  ExpectNoConnection({Trusting(*stranger_), ""});
  ExpectNoConnection({Trusting(*authority_), "another.test"});
  ExpectNoConnection({});
}

TEST_F(SecurityTest, MutualTlsAdmitsOnlyCertificatesOfItsAuthority) {
  ControllerOptions options = DefaultOptions();
  options.client_tls = Load(server_);
  StartController(std::move(options));
  const grpc::Status known = Call({Load(authority_->Issue("client")), ""});
  EXPECT_TRUE(known.ok()) << known.error_message();
  ExpectNoConnection({Trusting(*authority_), ""});
  TlsFiles impostor = stranger_->Issue("impostor");
  impostor.authority = authority_->file();
  ExpectNoConnection({Load(impostor), ""});
}

// --- tokens ---

TEST_F(SecurityTest, EveryTokenOfTheFileOpensTheService) {
  StartWithTokens();
  EXPECT_TRUE(Call({}, BearerOf(kToken)).ok());
  EXPECT_TRUE(Call({}, BearerOf(kOtherToken)).ok());
  const grpc::Status wrong = Call({}, BearerOf("first-token-012345678X"));
  EXPECT_EQ(wrong.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(wrong.error_message(), HasSubstr("not one of its tokens"));
}

TEST_F(SecurityTest, WithoutATokenEveryMethodIsClosed) {
  StartWithTokens();
  StartReplica();
  ASSERT_TRUE(WaitServing().ok());
  const auto* service = v1::GenerateRequest::descriptor()->file()->FindServiceByName("Generation");
  ASSERT_NE(service, nullptr);
  for (int i = 0; i < service->method_count(); ++i) {
    const std::string& name = service->method(i)->name();
    const grpc::Status status = CallRaw(absl::StrCat("/lockstep.v1.Generation/", name), "");
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << name;
    EXPECT_THAT(status.error_message(), HasSubstr("authorization: Bearer")) << name;
  }
}

// Nobody has to be known for a message to be inflated.
TEST_F(SecurityTest, CompressedMessagesAreRefusedUnread) {
  StartWithTokens();
  v1::TokenizeRequest request;
  request.set_text(std::string(3 << 20, 'x'));
  for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    grpc::ClientContext context;
    context.set_compression_algorithm(algorithm);
    v1::TokenizeResponse response;
    const grpc::Status status = stub().Tokenize(&context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
    EXPECT_THAT(status.error_message(), HasSubstr("disabled"));
  }
}

TEST_F(SecurityTest, WithTokensHealthStaysOpenAndReflectionIsOff) {
  StartWithTokens();
  grpc::ClientContext context;
  health::HealthCheckResponse response;
  EXPECT_TRUE(health::Health::NewStub(channel_)->Check(&context, {}, &response).ok());
  EXPECT_EQ(response.status(), health::HealthCheckResponse::NOT_SERVING);
  const std::string method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
  EXPECT_EQ(CallRaw(method, "").error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

// --- addresses ---

TEST_F(SecurityTest, AnAddressThatOthersCanReachNeedsTlsOrTheFlag) {
  ControllerOptions options = DefaultOptions();
  options.listen = "0.0.0.0:0";
  const absl::Status refused = Controller::Start(options).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("0.0.0.0:0"), HasSubstr("--tls-cert"),
                                                    HasSubstr("--insecure-listen")));
  options.api_tokens = *ApiTokens::Parse(kToken);  // would be sent in clear
  EXPECT_FALSE(Controller::Start(options).ok());
  options.insecure_listen = true;
  EXPECT_TRUE(Controller::Start(options).ok());
  options.insecure_listen = false;
  options.client_tls = Load(server_);
  EXPECT_TRUE(Controller::Start(options).ok());
}

// The right to open it stands for a certificate, but not for a token.
TEST_F(SecurityTest, ALocalSocketAsksForTokensAlone) {
  ControllerOptions options = DefaultOptions();
  options.client_tls = Load(server_);
  options.api_tokens = *ApiTokens::Parse(kToken);
  options.local_listen = absl::StrCat("unix:", (scratch_ / "clients").string());
  StartController(options);
  const grpc::Status known = CallAt(options.local_listen, {}, BearerOf(kToken));
  EXPECT_TRUE(known.ok()) << known.error_message();
  EXPECT_EQ(CallAt(options.local_listen, {}).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Call({}, BearerOf(kToken)).error_code(), grpc::StatusCode::UNAVAILABLE);
}

// --- the ranks' service ---

class RankTlsTest : public SecurityTest {
 protected:
  void StartBoth() {
    ControllerOptions options = DefaultOptions();
    options.worker_listen = {absl::StrCat("unix:", (scratch_ / "ranks").string()), "127.0.0.1:0"};
    options.worker_tls = Load(server_);
    StartController(std::move(options));
  }
  absl::Status Dial(size_t address, const DialSecurity& security, absl::Duration timeout) {
    return ControllerLink::Dial(controller_->worker_addresses()[address], security,
                                {.timeout = timeout, .check = nullptr})
        .status();
  }
};

TEST_F(RankTlsTest, RanksWithACertificateOfTheAuthorityConnect) {
  StartBoth();
  const absl::Status known = Dial(1, {Load(authority_->Issue("rank")), ""}, absl::Seconds(20));
  EXPECT_TRUE(known.ok()) << known;
}

TEST_F(RankTlsTest, OthersDoNotAndAreToldWhy) {
  StartBoth();
  EXPECT_FALSE(Dial(1, {}, kShort).ok());
  EXPECT_FALSE(Dial(1, {Trusting(*authority_), ""}, kShort).ok());
  const absl::Status stranger = Dial(1, {Load(stranger_->Issue("rank")), ""}, kShort);
  EXPECT_EQ(stranger.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(stranger.message()), HasSubstr("certificate"));
}

TEST_F(RankTlsTest, AUnixSocketBesideItStaysInClear) {
  StartBoth();
  StartReplica();  // over the first address
  EXPECT_TRUE(WaitServing().ok());
}

}  // namespace
}  // namespace lockstep::testing
