#include "runtime/controller/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "runtime/controller/journal_format.h"

namespace lockstep {
namespace {

// Below this a file is not worth rewriting, however little of it is alive.
constexpr int64_t kMinRewriteBytes = 1 << 20;
// Keepalive notices a dead connection within 50 s.
constexpr absl::Duration kFinishedWindow = absl::Seconds(60);

bool WriteAll(int file, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

// From one place in the file to another, or its end.
bool ReadAll(int file, int64_t from, int64_t to, std::string& bytes) {
  const auto num_bytes = static_cast<size_t>(to - from);
  bytes.resize(num_bytes);
  size_t done = 0;
  while (done < num_bytes) {
    const ssize_t count = ::pread(file, bytes.data() + done, num_bytes - done,
                                  static_cast<off_t>(from) + static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return false;
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  bytes.resize(done);
  return true;
}

v1::JournalRecord Ended(const std::string& request_id) {
  v1::JournalRecord record;
  record.set_ended(request_id);
  return record;
}

v1::JournalRecord Finished(const std::string& request_id) {
  v1::JournalRecord record;
  record.set_finished(request_id);
  return record;
}

}  // namespace

Journal::Journal(JournalOptions options, int directory)
    : options_(std::move(options)), directory_(directory) {}

Journal::~Journal() {
  rewriter_.Stop();
  if (directory_ >= 0) ::close(directory_);
}

absl::Status Journal::SystemError(const char* what) const {
  return absl::UnavailableError(
      absl::StrCat("journal ", options_.path, ": ", what, ": ", std::strerror(errno)));
}

// --- opening ---

namespace {

// The file itself, which need not exist: successors are renamed over it, not over a link to it.
std::filesystem::path WithoutLinks(std::filesystem::path path) {
  constexpr int kMostLinks = 40;  // the kernel's MAXSYMLINKS
  std::error_code error;
  for (int i = 0; i < kMostLinks && std::filesystem::is_symlink(path, error); ++i) {
    const std::filesystem::path target = std::filesystem::read_symlink(path, error);
    if (error) break;
    path = path.parent_path() / target;  // or the target, if it is absolute
  }
  return path;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Journal>> Journal::Open(JournalOptions options, absl::Time now) {
  options.path = WithoutLinks(options.path).string();
  std::filesystem::path parent = std::filesystem::path(options.path).parent_path();
  if (parent.empty()) parent = ".";
  const int directory = ::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  std::unique_ptr<Journal> journal(new Journal(std::move(options), directory));
  if (directory < 0) return journal->SystemError("cannot open its directory");
  absl::MutexLock lock(&journal->mutex_);
  RETURN_IF_ERROR(journal->Load(now));
  RETURN_IF_ERROR(journal->Rewrite());
  return journal;
}

absl::Status Journal::Load(absl::Time now) {
  file_ = Fd(::open(options_.path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600));
  if (!file_.valid()) return SystemError("cannot open");
  struct stat info;
  struct stat named;
  if (::fstat(file_.get(), &info) != 0) return SystemError("cannot stat");
  // Its holder may have renamed another file into place since it was opened here.
  if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0 || ::stat(options_.path.c_str(), &named) != 0 ||
      named.st_ino != info.st_ino) {
    return absl::FailedPreconditionError(
        absl::StrCat("journal ", options_.path, " is in use by another process"));
  }
  if (!S_ISREG(info.st_mode) || info.st_size > MaxFileBytes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "journal ", options_.path, " is not a regular file of at most ", MaxFileBytes(), " bytes"));
  }
  if (info.st_size == 0) return absl::OkStatus();  // new
  std::string bytes;
  if (!ReadAll(file_.get(), 0, info.st_size, bytes)) return SystemError("cannot read");
  const absl::StatusOr<ParsedJournal> parsed = ParseJournal(bytes);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "journal ", options_.path, ": ", parsed.status().message(), "; name another file"));
  }
  num_bytes_cut_ = static_cast<int64_t>(bytes.size() - parsed->num_valid_bytes);
  for (const v1::JournalRecord& record : parsed->records) Apply(record, now);
  if (parsed->header.model_fingerprint() != options_.model_fingerprint) {
    if (!waiting_.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("journal ", options_.path,
                       " holds requests to another model: name another file, or remove it"));
    }
    ForgetFinished();
  }
  num_recovered_ = static_cast<int>(waiting_.size());
  return absl::OkStatus();
}

void Journal::Apply(const v1::JournalRecord& record, absl::Time now) {
  if (record.has_finished()) {
    const auto entry = entries_.find(record.finished());
    if (entry == entries_.end()) return;
    ReleasedWith(entry->second).erase({entry->second.expires_at, entry->first});
    entry->second.is_finished = true;
    LetGo(entry, now + FinishedWindow());
    return;
  }
  const std::string& name =
      record.has_accepted() ? record.accepted().request().request_id() : record.ended();
  if (const auto old = entries_.find(name); old != entries_.end()) Remove(old);
  if (!record.has_accepted()) return;
  const int64_t num_bytes = static_cast<int64_t>(JournalFrame(record).size());
  LetGo(entries_.insert_or_assign(name, Entry{record.accepted(), num_bytes}).first,
        now + options_.reattach_window);
  live_bytes_ += num_bytes;
}

std::string Journal::Start() const {
  v1::JournalHeader header;
  header.set_model_fingerprint(options_.model_fingerprint);
  return JournalStart(header);
}

std::string Journal::Alive() const {
  std::string bytes = Start();
  for (const auto& [name, entry] : entries_) {
    v1::JournalRecord record;
    *record.mutable_accepted() = entry.request;
    bytes += JournalFrame(record);
    if (entry.is_finished) bytes += JournalFrame(Finished(name));
  }
  return bytes;
}

absl::StatusOr<Journal::Successor> Journal::WriteSuccessor(const char* suffix,
                                                           const std::string& bytes) const {
  Successor successor{options_.path + suffix, Fd(), static_cast<int64_t>(bytes.size())};
  const char* path = successor.path.c_str();
  ::unlink(path);
  successor.file = Fd(::open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  const int file = successor.file.get();
  if (file < 0) return SystemError("cannot create its successor");
  if (::flock(file, LOCK_EX | LOCK_NB) == 0 && WriteAll(file, bytes) && ::fsync(file) == 0) {
    return successor;
  }
  const absl::Status error = SystemError("cannot write its successor");
  ::unlink(path);
  return error;
}

// At no moment is there none. from: what the file has from there on is not in the successor yet.
absl::Status Journal::Replace(Successor successor, int64_t from) {
  std::string more;
  if (!ReadAll(file_.get(), from, file_bytes_, more) || !WriteAll(successor.file.get(), more) ||
      ::rename(successor.path.c_str(), options_.path.c_str()) != 0) {
    const absl::Status error = SystemError("cannot replace");
    ::unlink(successor.path.c_str());
    return error;
  }
  file_ = std::move(successor.file);
  file_bytes_ = successor.num_bytes + static_cast<int64_t>(more.size());
  ++num_files_;
  return absl::OkStatus();
}

absl::Status Journal::Rewrite() {
  ASSIGN_OR_RETURN(Successor successor, WriteSuccessor(".new", Alive()));
  RETURN_IF_ERROR(Replace(std::move(successor), file_bytes_));
  ::fsync(directory_);
  return absl::OkStatus();
}

void Journal::RewriteBeside() {
  if (std::exchange(is_rewriting_, true)) return;
  rewriter_.Push([this, bytes = Alive(), from = file_bytes_, begun_for = num_files_] {
    absl::StatusOr<Successor> successor = WriteSuccessor(".next", bytes);
    {
      absl::MutexLock lock(&mutex_);
      is_rewriting_ = false;
      if (successor.ok() && num_files_ != begun_for) {
        ::unlink(successor->path.c_str());
        return;
      }
      const bool replaced = successor.ok() && Replace(*std::move(successor), from).ok();
      rewrite_from_ = replaced ? 0 : file_bytes_ + kMinRewriteBytes;
    }
    ::fsync(directory_);
  });
}

// --- requests ---

bool Journal::Accept(const v1::JournaledRequest& request, uint64_t holder, absl::Time now) {
  LS_CHECK_GT(holder, 0u);
  const std::string& name = request.request().request_id();
  v1::JournalRecord record;
  *record.mutable_accepted() = request;
  const int64_t num_bytes = static_cast<int64_t>(record.ByteSizeLong()) + 8;
  absl::MutexLock lock(&mutex_);
  DropExpired(now);
  const auto old = entries_.find(name);
  const bool replaces = old != entries_.end();
  if (replaces) Remove(old);
  if (!MakeRoom(num_bytes) || !Append(record)) {
    const absl::Status why = error();
    if (replaces && Append(Ended(name))) SetError(why);  // else it would come back
    return false;
  }
  entries_[name] = {request, num_bytes, holder, absl::InfiniteFuture()};
  live_bytes_ += num_bytes;
  return true;
}

bool Journal::Hold(const std::string& request_id, uint64_t holder) {
  absl::MutexLock lock(&mutex_);
  const auto entry = entries_.find(request_id);
  if (entry == entries_.end()) return false;
  ReleasedWith(entry->second).erase({entry->second.expires_at, request_id});
  entry->second.holder = holder;
  entry->second.expires_at = absl::InfiniteFuture();
  if (!std::exchange(entry->second.is_finished, false)) return true;
  v1::JournalRecord record;
  *record.mutable_accepted() = entry->second.request;
  Append(record);  // failed: it can be attached to, until a restart
  return true;
}

void Journal::Release(const std::string& request_id, uint64_t holder, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  const auto entry = entries_.find(request_id);
  if (entry == entries_.end() || entry->second.holder != holder) return;
  LetGo(entry, now + options_.reattach_window);
  DropExpired(now);
}

void Journal::Finish(const std::string& request_id, uint64_t holder, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  const auto entry = entries_.find(request_id);
  if (entry == entries_.end() || entry->second.holder != holder) return;
  entry->second.is_finished = true;
  LetGo(entry, now + FinishedWindow());
  Append(Finished(request_id));  // failed: it would come back after a restart, for one window
  DropExpired(now);
}

absl::Duration Journal::FinishedWindow() const {
  return std::min(kFinishedWindow, options_.reattach_window);
}

void Journal::LetGo(Entries::iterator entry, absl::Time expires_at) {
  entry->second.holder = 0;
  entry->second.expires_at = expires_at;
  ReleasedWith(entry->second).emplace(expires_at, entry->first);
}

Journal::Released& Journal::ReleasedWith(const Entry& entry) {
  return entry.is_finished ? finished_ : waiting_;
}

void Journal::End(const std::string& request_id, uint64_t holder) {
  absl::MutexLock lock(&mutex_);
  const auto entry = entries_.find(request_id);
  if (entry == entries_.end() || (holder != 0 && entry->second.holder != holder)) return;
  Drop(entry);
}

std::optional<v1::JournaledRequest> Journal::Find(const std::string& request_id, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  DropExpired(now);
  const auto entry = entries_.find(request_id);
  if (entry == entries_.end()) return std::nullopt;
  return entry->second.request;
}

void Journal::DropExpired(absl::Time now) {
  for (const Released* released : {&finished_, &waiting_}) {
    while (!released->empty() && released->begin()->first <= now) {
      Drop(entries_.find(released->begin()->second));
    }
  }
}

// Finished ones go first, then those that wait longest for their clients. Those with clients stay.
bool Journal::MakeRoom(int64_t num_bytes) {
  const auto is_full = [&] {
    return live_bytes_ + num_bytes > options_.max_bytes ||
           static_cast<int64_t>(entries_.size()) >= options_.max_requests;
  };
  for (const Released* released : {&finished_, &waiting_}) {
    while (is_full() && !released->empty()) Drop(entries_.find(released->begin()->second));
  }
  return !is_full();
}

void Journal::Drop(Entries::iterator entry) {
  const std::string name = entry->first;
  Remove(entry);
  Append(Ended(name));  // failed: it would come back after a restart, for one window
}

void Journal::Remove(Entries::iterator entry) {
  live_bytes_ -= entry->second.num_bytes;
  ReleasedWith(entry->second).erase({entry->second.expires_at, entry->first});
  entries_.erase(entry);
}

void Journal::ForgetFinished() {
  while (!finished_.empty()) Remove(entries_.find(finished_.begin()->second));
}

bool Journal::Append(const v1::JournalRecord& record) {
  const std::string frame = JournalFrame(record);
  absl::Status written = MakeShort(static_cast<int64_t>(frame.size()));
  if (written.ok()) written = Write(frame);
  // What has ended, or finished, may take the room that is missing. Once: where that does not help,
  // it would be much work for every request.
  if (!written.ok() && error().ok()) {
    ForgetFinished();
    if (Rewrite().ok()) written = Write(frame);
  }
  if (!written.ok() && Empty()) written = Write(frame);
  SetError(written);
  return written.ok();
}

// Where that fails (a directory that may not be written any more), the file grows as long as it can
// be opened again.
absl::Status Journal::MakeShort(int64_t num_more_bytes) {
  const bool is_long = file_bytes_ > std::max(2 * live_bytes_ + kMinRewriteBytes, rewrite_from_);
  const bool is_too_long = file_bytes_ + num_more_bytes > MaxFileBytes();
  if (is_too_long) {
    const absl::Status rewritten = Rewrite();
    rewrite_from_ = rewritten.ok() ? 0 : file_bytes_ + kMinRewriteBytes;
    return rewritten;
  }
  if (is_long) RewriteBeside();
  return absl::OkStatus();
}

int64_t Journal::MaxFileBytes() const { return 4 * options_.max_bytes + 2 * kMinRewriteBytes; }

// Of a file in which nothing lives what has ended goes without a successor, for which there may be
// no room. An empty file is a new journal.
bool Journal::Empty() {
  for (const auto& [name, entry] : entries_) {
    if (!entry.is_finished) return false;
  }
  if (::ftruncate(file_.get(), 0) != 0) return false;
  file_bytes_ = 0;
  ++num_files_;
  return true;
}

absl::Status Journal::Write(const std::string& frame) {
  const std::string bytes = file_bytes_ == 0 ? Start() + frame : frame;
  if (::lseek(file_.get(), static_cast<off_t>(file_bytes_), SEEK_SET) < 0 ||
      !WriteAll(file_.get(), bytes)) {
    const absl::Status error = SystemError("cannot write");
    // A part of a record would hide those after it.
    if (::ftruncate(file_.get(), static_cast<off_t>(file_bytes_)) != 0)
      return SystemError("cannot cut");
    return error;
  }
  file_bytes_ += static_cast<int64_t>(bytes.size());
  return absl::OkStatus();
}

void Journal::SetError(const absl::Status& error) {
  {
    absl::MutexLock lock(&error_mutex_);
    error_ = error;
  }
  if (error.ok() || std::exchange(has_told_error_, true)) return;
  if (options_.on_error) options_.on_error(error);
}

int64_t Journal::num_requests() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(entries_.size());
}

int64_t Journal::num_file_bytes() const {
  absl::MutexLock lock(&mutex_);
  return file_bytes_;
}

absl::Status Journal::error() const {
  absl::MutexLock lock(&error_mutex_);
  return error_;
}

}  // namespace lockstep
