#include "tests/support/cuda_emulation/compiled/ptx_fixture.h"

#include <cstdlib>
#include <cstring>
#include <list>
#include <map>
#include <utility>

#include "absl/strings/str_replace.h"
#include "cuda_runtime.h"
#include "tests/support/cuda_emulation/compiled/kernels.h"

namespace lockstep::cuda_emulation::ptx {
namespace {

// A kernel of one parameter, `out`, whose address lies in %out; registers of all kinds.
constexpr char kFrame[] = R"(
.version 9.0
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 dynamic[];
.shared .align 4 .b8 common[8];
.visible .entry Kernel(.param .u64 out_parameter)
.maxntid 64, 1, 1
{
  .shared .align 4 .b8 own[128];
  .local .align 4 .b8 depot[16];
  .reg .pred %p<8>;
  .reg .b16 %rs<8>;
  .reg .b32 %r<16>;
  .reg .f32 %f<8>;
  .reg .b64 %rd<16>;
  .reg .f64 %fd<8>;
  .reg .b64 %out;
  ld.param.u64 %rd0, [out_parameter];
  cvta.to.global.u64 %rd1, %rd0;
  mov.u32 %r0, %tid.x;  // a comment
  mul.wide.u32 %rd2, %r0, 8;
  add.s64 %out, %rd1, %rd2;
  BODY
  ret;
}
)";

const Launch* running = nullptr;
void RunCompiled(uint64_t*) { RunThread(*running); }

// Of one block, with its one parameter.
Launch MakeLaunch(std::unique_ptr<Program> program, void* out, int threads, size_t dynamic_bytes) {
  std::shared_ptr<char> parameters(static_cast<char*>(std::malloc(sizeof(out))), &std::free);
  std::memcpy(parameters.get(), &out, sizeof(out));
  Launch launch = {.program = std::move(program),
                   .spare_frames = std::make_shared<SpareFrames>(),
                   .parameters = std::move(parameters),
                   .dynamic_shared_bytes = dynamic_bytes,
                   .counter = nullptr,
                   .races = nullptr,
                   .threads = std::make_shared<std::list<Thread>>()};
  if (LaunchesAreCounted()) {
    launch.counter = std::make_shared<LaunchCounter>(*launch.program, 1, threads);
  }
  return launch;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Program>> PtxTest::Make(const std::string& body) {
  const std::string text = absl::StrReplaceAll(kFrame, {{"BODY", body}});
  absl::StatusOr<ModuleText> module = ParseModule("kernel.ptx", text);
  if (!module.ok()) return module.status();
  return Assemble(*module, module->kernels.at(0));
}

std::vector<uint64_t> PtxTest::Run(const std::string& body, int threads, size_t dynamic_bytes) {
  absl::StatusOr<std::unique_ptr<Program>> program = Make(body);
  EXPECT_TRUE(program.ok()) << program.status();
  if (!program.ok()) return {};
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, threads * sizeof(uint64_t)), cudaSuccess);
  Launch launch = MakeLaunch(*std::move(program), memory, threads, dynamic_bytes);
  if (looks_for_races_) launch.races = std::make_shared<std::map<int64_t, BlockRaces>>();
  running = &launch;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = SharedBytesOf(launch);
  std::vector<uint64_t> out(threads);
  EXPECT_EQ(cudaLaunchKernelEx(&config, &RunCompiled, static_cast<uint64_t*>(memory)), cudaSuccess);
  if (cudaDeviceSynchronize() == cudaSuccess) {
    EXPECT_EQ(cudaMemcpy(out.data(), memory, threads * sizeof(uint64_t), cudaMemcpyDeviceToHost),
              cudaSuccess);
  }
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  return out;
}

}  // namespace lockstep::cuda_emulation::ptx
