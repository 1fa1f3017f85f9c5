#include "kernels/accelerator.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/this_program.h"
#include "kernels/base/version.h"

namespace lockstep {
namespace {

constexpr char kFile[] = "liblockstep_cuda.so";  // of the plugin
constexpr char kEntry[] = "lockstep_plugin";

absl::StatusOr<std::filesystem::path> FindPlugin() {
  const std::filesystem::path file = PluginFile();
  if (std::getenv(kPluginVariable) != nullptr) return file;
  // Told in no time; the plugin's libraries are half a gigabyte.
  if (::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) == nullptr) {
    return absl::NotFoundError("no NVIDIA driver is installed here (libcuda.so.1)");
  }
  if (!file.empty()) return file;
  // Who has a driver has GPUs: that they lie idle is news, unlike on a host without one.
  return absl::FailedPreconditionError(absl::StrCat(
      "there is an NVIDIA driver, but no ", kFile, " beside ",
      ThisProgram().value_or("the program"),
      " or in ../lib: build it where nvcc and NCCL are installed, or say --device cpu"));
}

}  // namespace

std::filesystem::path PluginFile() {
  if (const char* path = std::getenv(kPluginVariable)) return path;
  std::error_code error;
  const auto directory = std::filesystem::path(ThisProgram().value_or("")).parent_path();
  for (const auto& path : {directory / kFile, directory.parent_path() / "lib" / kFile}) {
    if (std::filesystem::exists(path, error)) return path;
  }
  return {};
}

absl::StatusOr<Accelerator*> OpenAccelerator(const std::filesystem::path& path) {
  std::filesystem::path file = path;
  if (file.empty()) {
    ASSIGN_OR_RETURN(file, FindPlugin());
  }
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) return absl::UnavailableError(::dlerror());
  const auto entry = reinterpret_cast<const AcceleratorPlugin* (*)()>(::dlsym(library, kEntry));
  if (entry == nullptr) {
    return absl::UnavailableError(absl::StrCat(file.string(), " is no plugin of lockstep"));
  }
  const AcceleratorPlugin* plugin = entry();
  if (std::strcmp(plugin->version, Version()) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(file.string(), " is of lockstep ",
                                                      plugin->version, ", this program of ",
                                                      Version(), ": install both of one version"));
  }
  return plugin->accelerator;
}

}  // namespace lockstep
