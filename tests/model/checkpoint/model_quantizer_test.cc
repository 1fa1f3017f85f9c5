// What `lockstep model quantize` takes along and what it refuses. The bits that it writes are
// checked where they are computed with (tests/model/llama/quantized_checkpoint_test.cc).
#include "model/checkpoint/model_quantizer.h"

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/model_writer.h"
#include "tests/support/read_file.h"
#include "tests/support/temp_directory.h"
#include "tests/support/unprivileged.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::ReadFile;
using testing::TempDirectory;
using testing::Unprivileged;

// A model of one layer in f32, and a place for what becomes of it, both open to all users.
class ModelQuantizerTest : public ::testing::Test {
 protected:
  ModelQuantizerTest() {
    SynthesizeOptions options;
    options.shape = "tiny";
    options.output = input_;
    options.num_layers = 1;
    options.dtype = DType::kF32;
    const auto model = SynthesizeModel(options);
    EXPECT_TRUE(model.ok()) << model.status();
    std::filesystem::permissions(directory_.path(), std::filesystem::perms::all);
  }

  absl::Status Quantize(Quantization quantization = Quantization::kInt8) {
    return QuantizeModel({.input = input_,
                          .output = output_,
                          .quantization = quantization,
                          .num_threads = 2,
                          .progress = {}})
        .status();
  }
  void ExpectNothingIsLeft() {
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_.path()), {}), 1);
  }

  const TempDirectory directory_;
  const std::filesystem::path input_ = directory_ / "model";
  const std::filesystem::path output_ = directory_ / "quantized";
};

TEST_F(ModelQuantizerTest, TokenizerAndDefaultsComeAlong) {
  const absl::Status status = Quantize();
  ASSERT_TRUE(status.ok()) << status;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    EXPECT_EQ(ReadFile(output_ / name), ReadFile(input_ / name)) << name;
  }
}

// It would say of the output what was true of the input.
TEST_F(ModelQuantizerTest, HowTheInputWasQuantizedStaysBehind) {
  std::ofstream(input_ / "hf_quant_config.json") << R"({"quantization":{"quant_algo":"FP8"}})";
  const absl::Status status = Quantize();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_FALSE(std::filesystem::exists(output_ / "hf_quant_config.json"));
}

TEST_F(ModelQuantizerTest, ADirectoryThatCannotBeListedIsNotTakenForOneWithoutTokenizer) {
  using enum std::filesystem::perms;
  for (const auto& file : std::filesystem::directory_iterator(input_)) {
    std::filesystem::permissions(file,
                                 owner_read | group_read | others_read);  // whatever the umask
  }
  std::filesystem::permissions(input_, owner_write | owner_exec | group_exec | others_exec);
  absl::Status status;
  {
    const Unprivileged unprivileged;
    status = Quantize();
  }
  std::filesystem::permissions(input_, owner_all);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(input_.string()), HasSubstr("cannot be listed: Permission denied")));
  ExpectNothingIsLeft();
}

TEST_F(ModelQuantizerTest, ALinkThatLeadsNowhereIsNamed) {
  std::filesystem::remove(input_ / "tokenizer.json");
  std::filesystem::create_symlink("nowhere", input_ / "tokenizer.json");
  EXPECT_THAT(std::string(Quantize().message()),
              HasSubstr("tokenizer.json: No such file or directory"));
  ExpectNothingIsLeft();
}

TEST_F(ModelQuantizerTest, AFileTooLargeToComeAlongIsNamed) {
  std::filesystem::resize_file(input_ / "tokenizer.json", (int64_t{256} << 20) + 1);
  EXPECT_THAT(std::string(Quantize().message()),
              HasSubstr("tokenizer.json has 268435457 bytes, at most 268435456 are copied"));
  ExpectNothingIsLeft();
}

TEST_F(ModelQuantizerTest, NumbersThatAreNotFiniteAreRefusedByTheirMatrix) {
  const auto checkpoint = Checkpoint::Open(input_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const std::string name = "model.layers.0.mlp.up_proj";
  const TensorInfo& tensor = **(*checkpoint)->Find(name + ".weight");
  for (const float number :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    std::fstream file(input_ / "model.safetensors", std::ios::in | std::ios::out);
    file.seekp(tensor.file_offset + 4 * (3 * tensor.shape[1] + 7));
    file.write(reinterpret_cast<const char*>(&number), sizeof(number));
    file.close();
    for (const Quantization quantization : {Quantization::kInt8, Quantization::kInt4}) {
      const absl::Status status = Quantize(quantization);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr(name + " has a NaN or an infinity"), HasSubstr("row 3,")));
      ExpectNothingIsLeft();
    }
  }
}

}  // namespace
}  // namespace lockstep
