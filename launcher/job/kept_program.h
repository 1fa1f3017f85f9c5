// The running program, and the plugin of its devices, as jobs on this host start them: also after
// other files were put in their places. Ranks must be of the controller's build; without this, the
// first lost rank would end a server whose installation has been upgraded meanwhile.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/base/fd.h"

namespace lockstep {

// A file that this process has in use, by a name that stays good while the process lives.
class KeptFile {
 public:
  // `used` leads to the file as long as it is in use ("/proc/7/exe"); a symbolic link to that is
  // made at `link`. UNAVAILABLE naming what cannot be read or made.
  static absl::StatusOr<KeptFile> Keep(const std::filesystem::path& file,
                                       const std::filesystem::path& used,
                                       const std::filesystem::path& link);
  // Its own path while it is there, then the link's.
  std::filesystem::path Path() const { return IsInPlace() ? file_ : link_; }
  bool IsInPlace() const;
  const std::filesystem::path& file() const { return file_; }  // its own path

 private:
  std::filesystem::path file_;
  std::filesystem::path link_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

class KeptProgram {
 public:
  // Makes its links in `directory`, which must outlive the jobs. UNAVAILABLE as above.
  static absl::StatusOr<KeptProgram> Keep(const std::filesystem::path& directory);

  const KeptFile& program() const { return program_; }
  // What tells ranks where the plugin is. Empty while it is in its place, or where there is none.
  std::map<std::string, std::string> PluginVariables() const;

 private:
  explicit KeptProgram(KeptFile program) : program_(std::move(program)) {}

  KeptFile program_;
  Fd open_plugin_;
  std::unique_ptr<KeptFile> plugin_;
};

}  // namespace lockstep
