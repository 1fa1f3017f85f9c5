#include "launcher/job/kept_program.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "kernels/accelerator.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/this_program.h"

namespace lockstep {

namespace fs = std::filesystem;

absl::StatusOr<KeptFile> KeptFile::Keep(const fs::path& file, const fs::path& used,
                                        const fs::path& link) {
  struct stat info;
  if (::stat(used.c_str(), &info) != 0) {
    return absl::UnavailableError(absl::StrCat(used.string(), ": ", std::strerror(errno)));
  }
  std::error_code error;
  fs::create_symlink(used, link, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("cannot create ", link.string(), ": ", error.message()));
  }
  KeptFile kept;
  kept.file_ = file;
  kept.link_ = link;
  kept.device_ = info.st_dev;
  kept.inode_ = info.st_ino;
  return kept;
}

bool KeptFile::IsInPlace() const {
  struct stat info;
  return ::stat(file_.c_str(), &info) == 0 && info.st_dev == device_ && info.st_ino == inode_;
}

absl::StatusOr<KeptProgram> KeptProgram::Keep(const fs::path& directory) {
  const std::string process = absl::StrCat("/proc/", ::getpid());
  ASSIGN_OR_RETURN(const fs::path file, ThisProgram());
  // Who looks for processes by the program's name finds these.
  ASSIGN_OR_RETURN(KeptFile program,
                   KeptFile::Keep(file, process + "/exe", directory / file.filename()));
  KeptProgram kept(std::move(program));
  const fs::path plugin = PluginFile();
  kept.open_plugin_ = Fd(::open(plugin.c_str(), O_RDONLY | O_CLOEXEC));
  if (!kept.open_plugin_.valid()) return kept;  // whoever needs it says what is wrong
  ASSIGN_OR_RETURN(KeptFile file_of_plugin,
                   KeptFile::Keep(plugin, absl::StrCat(process, "/fd/", kept.open_plugin_.get()),
                                  directory / plugin.filename()));
  kept.plugin_ = std::make_unique<KeptFile>(std::move(file_of_plugin));
  return kept;
}

std::map<std::string, std::string> KeptProgram::PluginVariables() const {
  if (plugin_ == nullptr || plugin_->IsInPlace()) return {};
  // Libraries that were found beside the plugin are not beside its link.
  const char* path = std::getenv("LD_LIBRARY_PATH");
  return {{kPluginVariable, plugin_->Path().string()},
          {"LD_LIBRARY_PATH", absl::StrCat(plugin_->file().parent_path().string(),
                                           path == nullptr ? "" : absl::StrCat(":", path))}};
}

}  // namespace lockstep
