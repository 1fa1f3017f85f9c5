#include "launcher/http/http_exchange.h"

#include "absl/strings/str_cat.h"

namespace lockstep {

HttpReply PlainReply(int status, absl::string_view text) {
  HttpReply reply;
  reply.status = status;
  reply.content_type = "text/plain";
  reply.body = absl::StrCat(text, "\n");
  return reply;
}

}  // namespace lockstep
