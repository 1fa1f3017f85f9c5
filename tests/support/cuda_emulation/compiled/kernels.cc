#include "tests/support/cuda_emulation/compiled/kernels.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/base/check.h"
#include "tests/support/cuda_emulation/compiled/symbols.h"

namespace lockstep::cuda_emulation::ptx {

namespace {

std::shared_ptr<char> AlignedCopy(const Program& program,
                                  std::span<const std::span<const char>> arguments) {
  constexpr size_t kAlignment = 128;
  const size_t bytes = (program.parameter_bytes / kAlignment + 1) * kAlignment;
  std::shared_ptr<char> copy(static_cast<char*>(std::aligned_alloc(kAlignment, bytes)), &std::free);
  LS_CHECK(copy != nullptr);
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::memcpy(copy.get() + program.parameter_offsets[i], arguments[i].data(),
                arguments[i].size());
  }
  return copy;
}

absl::Status CheckArguments(const Program& program,
                            std::span<const std::span<const char>> arguments) {
  bool fits = arguments.size() == program.parameters.size();
  for (size_t i = 0; fits && i < arguments.size(); ++i) {
    fits = static_cast<int64_t>(arguments[i].size()) == program.parameters[i].bytes;
  }
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(program.name, " in ", program.file,
                                                 " takes other arguments than its host gives"));
}

}  // namespace

absl::StatusOr<CompiledKernels> CompiledKernels::Read(const std::vector<std::string>& files) {
  CompiledKernels kernels;
  for (const std::string& file : files) {
    if (absl::Status status = kernels.Add(file); !status.ok()) return status;
  }
  return kernels;
}

absl::Status CompiledKernels::Add(const std::string& file) {
  std::ifstream stream(file);
  std::stringstream text;
  text << stream.rdbuf();
  if (!stream) return absl::NotFoundError(absl::StrCat("cannot read ", file));
  absl::StatusOr<ModuleText> module = ParseModule(file, text.str());
  if (!module.ok()) return module.status();
  modules_.push_back(std::make_unique<ModuleText>(*std::move(module)));
  for (const KernelText& kernel : modules_.back()->kernels) {
    const std::string name = CommonName(kernel.name);
    if (!kernels_.try_emplace(name, Kernel{modules_.back().get(), &kernel, {}, {}}).second) {
      return absl::AlreadyExistsError(absl::StrCat(file, ": one more kernel named ", name));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Launch> CompiledKernels::Prepare(const void* kernel,
                                                std::span<const std::span<const char>> arguments,
                                                size_t dynamic_shared_bytes) {
  const absl::StatusOr<std::string> name = NameOfFunction(kernel);
  if (!name.ok()) return name.status();
  const auto found = kernels_.find(CommonName(*name));
  if (found == kernels_.end()) {
    return absl::NotFoundError(absl::StrCat("no compiled kernel is named ", *name));
  }
  Kernel& compiled = found->second;
  if (compiled.program == nullptr) {
    absl::StatusOr<std::unique_ptr<Program>> program = Assemble(*compiled.module, *compiled.text);
    if (!program.ok()) return program.status();
    compiled.program = *std::move(program);
    compiled.spare_frames = std::make_shared<SpareFrames>();
  }
  absl::Status status = CheckArguments(*compiled.program, arguments);
  if (!status.ok()) return status;
  Launch launch{compiled.program,
                compiled.spare_frames,
                AlignedCopy(*compiled.program, arguments),
                dynamic_shared_bytes,
                nullptr,
                nullptr,
                std::make_shared<std::list<Thread>>()};
  if (looks_for_races_) {
    launch.races = std::make_shared<std::map<int64_t, BlockRaces>>();
  }
  return launch;
}

CompiledKernels* TheCompiledKernels() {
  static CompiledKernels* kernels = []() -> CompiledKernels* {
    const char* files = std::getenv("LOCKSTEP_CUDA_COMPILED");
    if (files == nullptr) return nullptr;
    absl::StatusOr<CompiledKernels> read =
        CompiledKernels::Read(absl::StrSplit(files, ':', absl::SkipEmpty()));
    LS_CHECK(read.ok()) << read.status();
    auto* const kernels = new CompiledKernels(*std::move(read));
    kernels->LookForRaces(std::getenv("LOCKSTEP_CUDA_RACES") != nullptr);
    return kernels;
  }();
  return kernels;
}

size_t SharedBytesOf(const Launch& launch) {
  return launch.program->static_shared_bytes == 0
             ? launch.dynamic_shared_bytes
             : StaticSharedOffset(launch) + launch.program->static_shared_bytes;
}

}  // namespace lockstep::cuda_emulation::ptx
