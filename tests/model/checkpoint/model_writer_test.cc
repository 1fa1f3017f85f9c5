#include "model/checkpoint/model_writer.h"

#include <unistd.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/llama_tensors.h"
#include "model/checkpoint/model_shapes.h"
#include "model/checkpoint/random_weights.h"
#include "tests/model/checkpoint/model_directory.h"
#include "tests/support/read_file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::ReadFile;
using testing::TempDirectory;

SynthesizeOptions Tiny(const fs::path& output) {
  SynthesizeOptions options;
  options.shape = "tiny";
  options.output = output;
  options.num_layers = 1;
  options.num_threads = 2;
  return options;
}

std::unique_ptr<Checkpoint> Synthesize(const SynthesizeOptions& options) {
  const auto model = SynthesizeModel(options);
  EXPECT_TRUE(model.ok()) << model.status();
  auto checkpoint = Checkpoint::Open(options.output);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  return *std::move(checkpoint);
}

std::vector<float> ReadFloats(const Checkpoint& checkpoint, const std::string& name) {
  const TensorInfo& tensor = **checkpoint.Find(name);
  const int64_t rows = tensor.shape.size() < 2 ? 1 : tensor.shape[0];
  std::vector<float> values(tensor.num_bytes / DTypeBytes(*tensor.dtype));
  std::vector<uint16_t> halves(values.size());
  void* dst = tensor.dtype == DType::kF32 ? static_cast<void*>(values.data()) : halves.data();
  EXPECT_TRUE(checkpoint.Read(tensor, 0, rows, 0, tensor.shape.back(), dst).ok());
  if (tensor.dtype == DType::kF32) return values;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = tensor.dtype == DType::kF16 ? ToFloat(F16{halves[i]}) : ToFloat(BF16{halves[i]});
  }
  return values;
}

class ModelWriterDType : public ::testing::TestWithParam<DType> {};

TEST_P(ModelWriterDType, WritesACompleteCheckpointOfSensibleWeights) {
  const TempDirectory directory;
  SynthesizeOptions options = Tiny(directory.path() / "model");
  options.dtype = GetParam();
  const auto checkpoint = Synthesize(options);
  EXPECT_TRUE(CheckLlamaTensors(*checkpoint).ok());
  EXPECT_EQ(checkpoint->config().dtype, GetParam());
  EXPECT_EQ(checkpoint->total_bytes(),
            checkpoint->config().num_parameters() * DTypeBytes(GetParam()));
  for (const float value : ReadFloats(*checkpoint, "model.norm.weight")) ASSERT_EQ(value, 1.0f);
  const auto values = ReadFloats(*checkpoint, "model.embed_tokens.weight");
  double sum = 0, squares = 0;
  for (const float value : values) sum += value, squares += value * value;
  const double count = static_cast<double>(values.size());
  // A million draws: the mean's error is 0.02 / 1000, five of those are allowed.
  EXPECT_NEAR(sum / count, 0.0, 1e-4);
  EXPECT_NEAR(std::sqrt(squares / count), 0.02, 2e-4);
}

INSTANTIATE_TEST_SUITE_P(All, ModelWriterDType,
                         ::testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

TEST(ModelWriter, WritesTheFilesOfAHuggingFaceDirectory) {
  const TempDirectory directory;
  Synthesize(Tiny(directory.path() / "model"));
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json",
                           "tokenizer_config.json", "model.safetensors"}) {
    EXPECT_TRUE(fs::exists(directory.path() / "model" / name)) << name;
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(directory.path()), {}), 1)
      << "left something over";
}

TEST(ModelWriter, SameSeedSameBytesForAnyNumberOfThreads) {
  const TempDirectory directory;
  SynthesizeOptions options = Tiny(directory.path() / "a");
  Synthesize(options);
  options.output = directory.path() / "b";
  options.num_threads = 5;
  Synthesize(options);
  options.output = directory.path() / "c";
  options.seed = 1;
  Synthesize(options);
  const std::string a = ReadFile(directory.path() / "a/model.safetensors");
  EXPECT_EQ(a, ReadFile(directory.path() / "b/model.safetensors"));
  EXPECT_NE(a, ReadFile(directory.path() / "c/model.safetensors"));
}

TEST(ModelWriter, ShardsHoldTheSameWeights) {
  const TempDirectory directory;
  SynthesizeOptions options = Tiny(directory.path() / "whole");
  const auto whole = Synthesize(options);
  options.output = directory.path() / "sharded";
  options.max_shard_bytes = 2'200'000;
  const auto sharded = Synthesize(options);
  EXPECT_TRUE(CheckLlamaTensors(*sharded).ok());
  EXPECT_TRUE(fs::exists(options.output / "model.safetensors.index.json"));
  EXPECT_TRUE(fs::exists(options.output / "model-00001-of-00003.safetensors"));
  EXPECT_EQ(sharded->files().size(), 3u);
  EXPECT_EQ(sharded->tensor_names(), whole->tensor_names());
  for (const std::string& name : whole->tensor_names()) {
    EXPECT_EQ(ReadFloats(*sharded, name), ReadFloats(*whole, name)) << name;
  }
}

TEST(ModelWriter, LayersDoNotDependOnTheirNumber) {
  const TempDirectory directory;
  SynthesizeOptions options = Tiny(directory.path() / "one");
  const auto one = Synthesize(options);
  options.output = directory.path() / "two";
  options.num_layers = 2;
  const auto two = Synthesize(options);
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  EXPECT_EQ(ReadFloats(*one, name), ReadFloats(*two, name));
  EXPECT_NE(ReadFloats(*two, name), ReadFloats(*two, "model.layers.1.mlp.up_proj.weight"));
}

TEST(ModelWriter, TakesAConfigFileForAShape) {
  const TempDirectory directory;
  ModelConfig config = *BuiltInShape("tiny");
  config.hidden_size = 64;
  config.tie_word_embeddings = true;
  SynthesizeOptions options = Tiny(directory.path() / "model");
  options.num_layers.reset();
  options.shape = directory.Write("shape/config.json", ModelConfigJson(config)).string();
  EXPECT_EQ(Synthesize(options)->config().Fingerprint(), config.Fingerprint());
  options.shape = (directory.path() / "shape").string();
  options.output = directory.path() / "again";
  EXPECT_EQ(Synthesize(options)->config().Fingerprint(), config.Fingerprint());
}

TEST(ModelWriter, AShapeThatDoesNotEndIsNotReadWhole) {
  const TempDirectory directory;
  std::string config = ModelConfigJson(*BuiltInShape("tiny"));
  config.resize((1 << 20) + 1, ' ');
  SynthesizeOptions options = Tiny(directory.path() / "model");
  options.shape = directory.Write("config.json", config).string();
  ASSERT_THAT(std::string(SynthesizeModel(options).status().message()),
              HasSubstr("1048577 bytes, the limit is 1048576"));
  options.shape = "/dev/zero";
  EXPECT_THAT(std::string(SynthesizeModel(options).status().message()),
              HasSubstr("/dev/zero: not a regular file"));
}

TEST(ModelWriter, AnEmptyOutputDirectoryIsUsed) {
  const TempDirectory directory;
  fs::create_directory(directory.path() / "model");
  Synthesize(Tiny(directory.path() / "model/"));
}

TEST(ModelWriter, ExistingFilesAreKept) {
  const TempDirectory directory;
  directory.Write("model/mine.txt", "x");
  const auto model = SynthesizeModel(Tiny(directory.path() / "model"));
  EXPECT_EQ(model.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ReadFile(directory.path() / "model/mine.txt"), "x");
}

TEST(ModelWriter, WhatAnotherProcessLeftUnderTheTemporaryNameStays) {
  const TempDirectory directory;
  const std::string left = absl::StrCat("model.partial-", ::getpid());
  directory.Write(left + "/config.json", "theirs");
  directory.Write(left + "-1", "a file");
  SynthesizeOptions options = Tiny(directory.path() / "model");
  options.progress = [](int64_t, int64_t) { return false; };
  EXPECT_EQ(SynthesizeModel(options).status().code(), absl::StatusCode::kCancelled);
  options.progress = nullptr;
  Synthesize(options);
  EXPECT_EQ(ReadFile(directory.path() / left / "config.json"), "theirs");
  EXPECT_EQ(std::distance(fs::directory_iterator(directory.path() / left), {}), 1);
  EXPECT_EQ(std::distance(fs::directory_iterator(directory.path()), {}), 3);
}

TEST(ModelWriter, TheDirectoryIsOpenToWhomTheUsualOnesAre) {
  const TempDirectory directory;
  Synthesize(Tiny(directory.path() / "model"));
  fs::create_directory(directory.path() / "usual");
  EXPECT_EQ(fs::status(directory.path() / "model").permissions(),
            fs::status(directory.path() / "usual").permissions());
}

TEST(ModelWriter, NamesThatCannotBeTakenAreRefusedBeforeTheWork) {
  const TempDirectory directory;
  fs::create_directory(directory.path() / "empty");
  fs::create_directory_symlink(directory.path() / "empty", directory.path() / "link");
  fs::create_directory_symlink(directory.path() / "nowhere", directory.path() / "dangling");
  const auto error = [](const fs::path& output) {
    SynthesizeOptions options = Tiny(output);
    options.progress = [](int64_t, int64_t) {
      ADD_FAILURE() << "is written";
      return false;
    };
    return std::string(SynthesizeModel(options).status().message());
  };
  for (const char* name : {"empty/.", "empty/..", "empty/./"}) {
    EXPECT_THAT(error(directory.path() / name), HasSubstr("not a name")) << name;
  }
  for (const char* name : {".", "..", "./", "/"}) EXPECT_THAT(error(name), HasSubstr("not a name"));
  for (const char* name : {"link", "dangling", "link/"}) {
    EXPECT_THAT(error(directory.path() / name), HasSubstr("is a link")) << name;
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(directory.path()), {}), 3);
}

TEST(ModelWriter, ProgressReachesTheTotalAndMayStop) {
  const TempDirectory directory;
  SynthesizeOptions options = Tiny(directory.path() / "model");
  int64_t last = 0, total = 0;
  options.progress = [&](int64_t done, int64_t all) {
    EXPECT_GT(done, last);
    last = done, total = all;
    return true;
  };
  const auto checkpoint = Synthesize(options);
  EXPECT_EQ(last, total);
  EXPECT_EQ(total, checkpoint->total_bytes());

  options.output = directory.path() / "stopped";
  options.progress = [](int64_t, int64_t) { return false; };
  EXPECT_EQ(SynthesizeModel(options).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(std::distance(fs::directory_iterator(directory.path()), {}), 1)
      << "left something over";
}

TEST(ModelWriter, BadOptionsAreRefusedByName) {
  const TempDirectory directory;
  const auto error = [&](auto change) {
    SynthesizeOptions options = Tiny(directory.path() / "model");
    change(options);
    return std::string(SynthesizeModel(options).status().message());
  };
  EXPECT_THAT(error([](auto& o) { o.shape = "llama-9b"; }), HasSubstr("did you mean"));
  EXPECT_THAT(error([](auto& o) { o.num_layers = 0; }), HasSubstr("num_hidden_layers = 0"));
  EXPECT_THAT(error([](auto& o) { o.max_shard_bytes = 0; }), HasSubstr("max_shard_bytes = 0"));
  EXPECT_THAT(error([](auto& o) { o.output = ""; }), HasSubstr("output directory's name is empty"));
  EXPECT_THAT(error([](auto& o) { o.output = "/proc/nothing/model"; }), HasSubstr("/proc/nothing"));
}

TEST(ModelWriter, AModelLargerThanTheDiskIsRefusedWithTheNumbers) {
  const TempDirectory directory;
  SynthesizeOptions options = Tiny(directory.path() / "model");
  options.shape = "405b";
  options.num_layers = 4096;
  const auto model = SynthesizeModel(options);
  EXPECT_EQ(model.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(model.status().message()), HasSubstr("GB free"));
  EXPECT_TRUE(fs::is_empty(directory.path())) << "left something over";
}

TEST(RandomWeights, AnySplitOfAStreamIsTheSameStream) {
  const RandomWeights weights(DType::kF32, 0.02);
  std::vector<float> whole(101), parts(101);
  weights.Fill(7, 0, 101, whole.data());
  weights.Fill(7, 0, 2, parts.data());
  weights.Fill(7, 2, 50, parts.data() + 2);
  weights.Fill(7, 52, 49, parts.data() + 52);
  EXPECT_EQ(whole, parts);
}

TEST(RandomWeights, F16BitsRoundToNearest) {
  for (const double value : {0.0, 1.0, -1.0, 0.02, -0.000135, 1.0009765625, 65504.0, 1.99999}) {
    const float back = ToFloat(F16{static_cast<uint16_t>(ElementBits(DType::kF16, value))});
    EXPECT_NEAR(back, value, std::fabs(value) * 0x1p-11) << value;
  }
}

}  // namespace
}  // namespace lockstep
