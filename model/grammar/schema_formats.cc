#include "model/grammar/schema_formats.h"

#include "absl/strings/str_cat.h"

namespace lockstep::grammar {
namespace {

// RFC 3339, from the year 1 on.
std::string DatePattern() {
  constexpr char kYear[] = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})";
  constexpr char kLeapYear[] =
      "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)";
  constexpr char kDay[] =
      "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
      "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
      "|02-(?:0[1-9]|1[0-9]|2[0-8]))";
  return absl::StrCat("(?:", kYear, "-", kDay, "|", kLeapYear, "-02-29)");
}

std::string TimePattern() {
  constexpr char kHour[] = "(?:[01][0-9]|2[0-3])";
  constexpr char kSixty[] = "[0-5][0-9]";
  return absl::StrCat(kHour, ":", kSixty, ":", kSixty, "(?:\\.[0-9]{1,9})?(?:Z|[+-]", kHour, ":",
                      kSixty, ")");
}

std::string UuidPattern() {
  constexpr char kFour[] = "[0-9A-Fa-f]{4}";
  return absl::StrCat("[0-9A-Fa-f]{8}-", kFour, "-", kFour, "-", kFour, "-[0-9A-Fa-f]{12}");
}

std::string Ipv4Pattern() {
  constexpr char kByte[] = "(?:[0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])";
  return absl::StrCat(kByte, "(?:\\.", kByte, "){3}");
}

std::string EmailPattern() {
  constexpr char kWord[] = "[A-Za-z0-9_%+-]{1,20}";
  constexpr char kLabel[] = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?\\.";
  return absl::StrCat(kWord, "(?:\\.", kWord, "){0,2}@(?:", kLabel, "){1,3}[A-Za-z]{2,24}");
}

}  // namespace

std::string FormatPattern(std::string_view format) {
  if (format == "date") return DatePattern();
  if (format == "time") return TimePattern();
  if (format == "date-time") return absl::StrCat(DatePattern(), "T", TimePattern());
  if (format == "uuid") return UuidPattern();
  if (format == "ipv4") return Ipv4Pattern();
  if (format == "email") return EmailPattern();
  return "";
}

}  // namespace lockstep::grammar
