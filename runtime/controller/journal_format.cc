#include "runtime/controller/journal_format.h"

#include <zlib.h>

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace lockstep {
namespace {

constexpr absl::string_view kMagic = "lockstep journal\n";
constexpr uint32_t kFormat = 1;
constexpr size_t kFrameHeadBytes = 8;

void PutFixed32(uint32_t value, std::string& out) {
  for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(value >> shift));
}

uint32_t GetFixed32(absl::string_view bytes) {
  uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

uint32_t Checksum(absl::string_view bytes, uint32_t before) {
  return static_cast<uint32_t>(::crc32(before, reinterpret_cast<const Bytef*>(bytes.data()),
                                       static_cast<uInt>(bytes.size())));
}

std::string Frame(const google::protobuf::Message& message) {
  const std::string payload = message.SerializeAsString();
  std::string frame;
  PutFixed32(static_cast<uint32_t>(payload.size()), frame);
  PutFixed32(Checksum(payload, Checksum(frame, 0)), frame);
  return frame + payload;
}

// Takes one frame off the front; nullopt when there is no whole and sound one. A length of 0 is
// none: a hole that a crash left in a file reads so.
std::optional<absl::string_view> TakeFrame(absl::string_view& bytes) {
  if (bytes.size() < kFrameHeadBytes) return std::nullopt;
  const uint32_t num_bytes = GetFixed32(bytes);
  if (num_bytes == 0 || num_bytes > bytes.size() - kFrameHeadBytes) return std::nullopt;
  const absl::string_view payload = bytes.substr(kFrameHeadBytes, num_bytes);
  if (Checksum(payload, Checksum(bytes.substr(0, 4), 0)) != GetFixed32(bytes.substr(4))) {
    return std::nullopt;
  }
  bytes.remove_prefix(kFrameHeadBytes + num_bytes);
  return payload;
}

bool Parse(absl::string_view payload, google::protobuf::Message& message) {
  return message.ParseFromArray(payload.data(), static_cast<int>(payload.size()));
}

}  // namespace

std::string JournalStart(const v1::JournalHeader& header) {
  v1::JournalHeader complete = header;
  complete.set_format(kFormat);
  return absl::StrCat(kMagic, Frame(complete));
}

std::string JournalFrame(const v1::JournalRecord& record) { return Frame(record); }

absl::StatusOr<ParsedJournal> ParseJournal(absl::string_view bytes) {
  ParsedJournal journal;
  absl::string_view rest = bytes;
  if (!absl::ConsumePrefix(&rest, kMagic)) return absl::InvalidArgumentError("it is not a journal");
  const std::optional<absl::string_view> header = TakeFrame(rest);
  if (!header || !Parse(*header, journal.header)) {
    return absl::InvalidArgumentError("its header is damaged");
  }
  if (journal.header.format() != kFormat) {
    return absl::InvalidArgumentError(
        absl::StrCat("it has format ", journal.header.format(), ", this program writes ", kFormat));
  }
  journal.num_valid_bytes = bytes.size() - rest.size();
  while (const std::optional<absl::string_view> payload = TakeFrame(rest)) {
    v1::JournalRecord record;
    if (!Parse(*payload, record)) break;
    journal.records.push_back(std::move(record));
    journal.num_valid_bytes = bytes.size() - rest.size();
  }
  return journal;
}

}  // namespace lockstep
