// The bytes of a journal file: a magic word, then frames. A frame is the length of its payload and
// the CRC-32 of length and payload (both little-endian, 4 bytes), then the payload. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "lockstep/v1/journal.pb.h"

namespace lockstep {

std::string JournalStart(const v1::JournalHeader& header);
std::string JournalFrame(const v1::JournalRecord& record);

struct ParsedJournal {
  v1::JournalHeader header;
  std::vector<v1::JournalRecord> records;
  size_t num_valid_bytes = 0;  // what follows was being written when the writer died
};

// INVALID_ARGUMENT: it does not begin as a journal does, or is of another format. A frame that is
// cut short, does not match its checksum or is no record ends the journal there.
absl::StatusOr<ParsedJournal> ParseJournal(absl::string_view bytes);

}  // namespace lockstep
