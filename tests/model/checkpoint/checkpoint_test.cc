#include "model/checkpoint/checkpoint.h"

#include <map>
#include <numeric>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/llama_tensors.h"
#include "tests/model/checkpoint/model_directory.h"
#include "tests/support/assets.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using testing::FloatBytes;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::SafetensorsBytes;
using testing::TempDirectory;

// Hidden size 4, one layer, two heads, one KV head, vocabulary 6.
constexpr const char* kConfig = R"({"model_type":"llama","hidden_size":4,"intermediate_size":8,
    "num_hidden_layers":1,"num_attention_heads":2,"num_key_value_heads":1,"vocab_size":6,
    "tie_word_embeddings":true,"torch_dtype":"float32"})";
constexpr const char* kIndex = "model.safetensors.index.json";

// A tensor [rows, columns] holding first, first + 1, ...
std::string MatrixFile(const std::string& name, int rows, int columns, float first = 0) {
  std::vector<float> values(rows * columns);
  std::iota(values.begin(), values.end(), first);
  return SafetensorsBytes(
      absl::StrCat(R"({")", name, R"(":{"dtype":"F32","shape":[)", rows, ",", columns,
                   R"(],"data_offsets":[0,)", 4 * rows * columns, "]}}"),
      FloatBytes(values));
}

std::string OpenError(const TempDirectory& directory) {
  const auto checkpoint = Checkpoint::Open(directory.path());
  EXPECT_FALSE(checkpoint.ok());
  const std::string message(checkpoint.status().message());
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return message;
}

class CheckpointReads : public ::testing::Test {
 protected:
  CheckpointReads() {
    directory_.Write("config.json", kConfig);
    directory_.Write("model.safetensors", MatrixFile("m", 3, 4));
    auto opened = Checkpoint::Open(directory_.path());
    EXPECT_TRUE(opened.ok()) << opened.status();
    checkpoint_ = *std::move(opened);
  }

  std::vector<float> Read(int row_begin, int row_end, int col_begin, int col_end) {
    std::vector<float> out((row_end - row_begin) * (col_end - col_begin) + 1, -1.0f);
    const absl::Status status = checkpoint_->Read(**checkpoint_->Find("m"), row_begin, row_end,
                                                  col_begin, col_end, out.data());
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(out.back(), -1.0f) << "wrote past the end";
    out.pop_back();
    return out;
  }

  TempDirectory directory_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

TEST_F(CheckpointReads, WholeRowsAndColumnSlices) {
  EXPECT_THAT(Read(1, 3, 0, 4), ElementsAre(4, 5, 6, 7, 8, 9, 10, 11));
  EXPECT_THAT(Read(0, 3, 1, 3), ElementsAre(1, 2, 5, 6, 9, 10));
  EXPECT_THAT(Read(2, 3, 3, 4), ElementsAre(11));
  EXPECT_THAT(Read(1, 1, 0, 4), IsEmpty());
  EXPECT_THAT(Read(0, 3, 2, 2), IsEmpty());
}

TEST_F(CheckpointReads, CountsExactlyTheBytesAsked) {
  EXPECT_EQ(checkpoint_->bytes_read(), 0);
  Read(1, 3, 0, 4);
  EXPECT_EQ(checkpoint_->bytes_read(), 2 * 4 * 4);
  Read(0, 3, 1, 3);
  EXPECT_EQ(checkpoint_->bytes_read(), 2 * 4 * 4 + 3 * 2 * 4);
}

TEST_F(CheckpointReads, ThreadsReadDisjointParts) {
  std::vector<float> rows(12);
  std::vector<std::thread> threads;
  for (int row = 0; row < 3; ++row) {
    threads.emplace_back([&, row] {
      const auto status =
          checkpoint_->Read(**checkpoint_->Find("m"), row, row + 1, 0, 4, rows.data() + 4 * row);
      EXPECT_TRUE(status.ok()) << status;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(rows, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
  EXPECT_EQ(checkpoint_->bytes_read(), 48);
}

TEST_F(CheckpointReads, OutsideTheTensorIsRefused) {
  const TensorInfo& tensor = **checkpoint_->Find("m");
  float out[16];
  constexpr int kOutside[][4] = {{0, 4, 0, 4}, {-1, 1, 0, 4}, {2, 1, 0, 4},
                                 {0, 3, 0, 5}, {0, 3, -1, 2}, {0, 3, 3, 2}};
  for (const auto& [row_begin, row_end, col_begin, col_end] : kOutside) {
    const absl::Status status =
        checkpoint_->Read(tensor, row_begin, row_end, col_begin, col_end, out);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("\"m\" is [3, 4]"));
  }
  EXPECT_EQ(checkpoint_->bytes_read(), 0);
}

TEST_F(CheckpointReads, AFileThatShrinksIsUnavailable) {
  const TensorInfo& tensor = **checkpoint_->Find("m");
  fs::resize_file(directory_.path() / "model.safetensors", tensor.file_offset + 20);
  float out[12];
  EXPECT_TRUE(checkpoint_->Read(tensor, 0, 1, 0, 4, out).ok());
  const absl::Status status = checkpoint_->Read(tensor, 0, 3, 0, 4, out);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("28 bytes early"));
}

std::string FingerprintOf(const TempDirectory& directory) {
  return *(*Checkpoint::Open(directory.path()))->Fingerprint();
}

TEST(CheckpointFingerprint, TellsAFineTuneFromItsBase) {
  const TempDirectory base;
  base.Write("config.json", kConfig);
  base.Write("model.safetensors", MatrixFile("m", 30, 4));
  const TempDirectory same;
  same.Write("config.json", kConfig);
  same.Write("model.safetensors", MatrixFile("m", 30, 4));
  EXPECT_EQ(FingerprintOf(same), FingerprintOf(base));

  const TempDirectory tuned;
  tuned.Write("config.json", kConfig);
  tuned.Write("model.safetensors", MatrixFile("m", 30, 4, /*first=*/0.5));
  EXPECT_NE(FingerprintOf(tuned), FingerprintOf(base));
  const TempDirectory renamed;
  renamed.Write("config.json", kConfig);
  renamed.Write("model.safetensors", MatrixFile("n", 30, 4));
  EXPECT_NE(FingerprintOf(renamed), FingerprintOf(base));
  const TempDirectory other_shape;
  other_shape.Write("config.json", kConfig);
  other_shape.Write("model.safetensors", MatrixFile("m", 4, 30));
  EXPECT_NE(FingerprintOf(other_shape), FingerprintOf(base));
}

TEST(CheckpointFingerprint, DoesNotDependOnFiles) {
  const TempDirectory whole;
  whole.Write("config.json", kConfig);
  const std::string header = R"({"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
                             R"("m":{"dtype":"F32","shape":[2,2],"data_offsets":[8,24]}})";
  whole.Write("model.safetensors", SafetensorsBytes(header, FloatBytes({0, 1, 0, 1, 2, 3})));
  const TempDirectory parts;
  parts.Write("config.json", kConfig);
  parts.Write("x.safetensors", MatrixFile("m", 2, 2));
  parts.Write("y.safetensors", MatrixFile("a", 1, 2));
  parts.Write(kIndex, R"({"weight_map":{"m":"x.safetensors","a":"y.safetensors"}})");
  EXPECT_EQ(FingerprintOf(parts), FingerprintOf(whole));
}

TEST(Checkpoint, VectorsAreOneRow) {
  const TempDirectory directory;
  directory.Write("config.json", kConfig);
  directory.Write("model.safetensors",
                  SafetensorsBytes(R"({"v":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}})",
                                   FloatBytes({7, 8, 9})));
  const auto checkpoint = Checkpoint::Open(directory.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  float out[2];
  ASSERT_TRUE((*checkpoint)->Read(**(*checkpoint)->Find("v"), 0, 1, 1, 3, out).ok());
  EXPECT_THAT(out, ElementsAre(8, 9));
}

TEST(Checkpoint, IntegerTensorsAreListedButNotRead) {
  const TempDirectory directory;
  directory.Write("config.json", kConfig);
  directory.Write("model.safetensors",
                  SafetensorsBytes(R"({"v":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})",
                                   std::string(8, '\0')));
  const auto checkpoint = Checkpoint::Open(directory.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  char out[8];
  const absl::Status status = (*checkpoint)->Read(**(*checkpoint)->Find("v"), 0, 1, 0, 1, out);
  EXPECT_THAT(std::string(status.message()), HasSubstr("dtype I64; supported: F32, F16, BF16"));
}

TEST(Checkpoint, UnknownTensorIsNamed) {
  const TempDirectory directory;
  directory.Write("config.json", kConfig);
  directory.Write("model.safetensors", MatrixFile("m", 1, 1));
  const auto checkpoint = Checkpoint::Open(directory.path());
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_THAT(std::string((*checkpoint)->Find("x").status().message()),
              HasSubstr("the checkpoint has no tensor \"x\""));
}

TEST(CheckpointDirectory, ErrorsSayWhatToDo) {
  const TempDirectory directory;
  EXPECT_THAT(OpenError(directory), HasSubstr("no config.json here"));
  directory.Write("params.json", "{}");
  EXPECT_THAT(OpenError(directory), HasSubstr("Meta's original layout"));
  directory.Write("config.json", kConfig);
  EXPECT_THAT(OpenError(directory), HasSubstr("neither model.safetensors nor"));
  directory.Write("pytorch_model.bin", "");
  EXPECT_THAT(OpenError(directory), HasSubstr("convert pytorch_model.bin"));
  directory.Write("config.json", "{}");
  EXPECT_THAT(OpenError(directory), HasSubstr("config.json: model_type is missing"));
}

TEST(CheckpointDirectory, MissingOnesAreNotFound) {
  const auto absent = Checkpoint::Open("/nonexistent/model");
  EXPECT_EQ(absent.status().code(), absl::StatusCode::kNotFound);
  const auto hub = Checkpoint::Open("meta-llama/Llama-3.2-1B");
  EXPECT_EQ(hub.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(hub.status().message()),
              HasSubstr("first: hf download meta-llama/Llama-3.2-1B"));
  EXPECT_EQ(Checkpoint::Open("").status().code(), absl::StatusCode::kNotFound);
}

TEST(CheckpointDirectory, AFileIsNotADirectory) {
  const TempDirectory directory;
  const auto checkpoint = Checkpoint::Open(directory.Write("model.gguf", "GGUF"));
  EXPECT_THAT(std::string(checkpoint.status().message()), HasSubstr("not a directory; pass"));
}

TEST(CheckpointDirectory, OversizedConfigIsRefused) {
  const TempDirectory directory;
  directory.Write("config.json", std::string((1 << 20) + 1, ' '));
  EXPECT_THAT(OpenError(directory), HasSubstr("1048577 bytes, the limit is 1048576"));
}

// How ModelOpt has quantized may lie in a file of its own, which config.json's word goes before.
TEST(CheckpointDirectory, ModelOptsFileIsRead) {
  const TempDirectory directory;
  directory.Write("config.json", kConfig);
  directory.Write("model.safetensors", MatrixFile("m", 1, 1));
  const auto stored_name = [&directory] {
    const auto checkpoint = Checkpoint::Open(directory.path());
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    if (!checkpoint.ok() || !(*checkpoint)->config().stored) return std::string();
    return (*checkpoint)->config().stored->name;
  };
  EXPECT_EQ(stored_name(), "");
  directory.Write("hf_quant_config.json",
                  R"({"producer":{"name":"modelopt","version":"0.23.0"},"quantization":
                  {"quant_algo":"FP8","kv_cache_quant_algo":"FP8","exclude_modules":["lm_head"]}})");
  EXPECT_EQ(stored_name(), "ModelOpt, FP8 with a scale per matrix");
  std::string said = kConfig;
  said.insert(said.find('{') + 1, R"("quantization_config":{"quant_method":"fbgemm_fp8"},)");
  directory.Write("config.json", said);
  EXPECT_EQ(stored_name(), "fbgemm_fp8, FP8 with a scale per row");
  directory.Write("config.json", kConfig);
  directory.Write("hf_quant_config.json", R"({"quantization":{"quant_algo":"W4A8_AWQ"}})");
  EXPECT_THAT(OpenError(directory), HasSubstr("quantization_config.quant_algo = \"W4A8_AWQ\""));
  for (const char* wrong : {"{}", "[1]", "{"}) {
    directory.Write("hf_quant_config.json", wrong);
    EXPECT_THAT(OpenError(directory), HasSubstr("hf_quant_config.json: ")) << wrong;
  }
}

TEST(CheckpointDirectory, GenerationConfigIsMerged) {
  const TempDirectory directory;
  directory.Write("config.json", kConfig);
  directory.Write("model.safetensors", MatrixFile("m", 1, 1));
  directory.Write("generation_config.json", R"({"eos_token_id":[4,5],"temperature":0.5})");
  const auto checkpoint = Checkpoint::Open(directory.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT((*checkpoint)->config().eos_token_ids, ElementsAre(4, 5));
  EXPECT_EQ((*checkpoint)->generation_defaults().temperature, 0.5f);
  directory.Write("generation_config.json", R"({"eos_token_id":6})");
  EXPECT_THAT(OpenError(directory), HasSubstr("generation_config.json: eos_token_id = 6"));
}

// The last is one that the model has no row for.
TEST(CheckpointDirectory, TheTokenizersEndTokenIsOneMore) {
  const TempDirectory directory;
  directory.Write("config.json", kConfig);
  directory.Write("model.safetensors", MatrixFile("m", 1, 1));
  directory.Write("generation_config.json", R"({"eos_token_id":4})");
  directory.Write("tokenizer.json", R"({"added_tokens":[{"id":2,"content":"<end>"},
      {"id":4,"content":"<turn>"},{"id":6,"content":"<far>"}]})");
  for (const auto& [name, ids] : std::map<std::string, std::vector<int32_t>>{
           {"<end>", {4, 2}}, {"<turn>", {4}}, {"<far>", {4}}, {"<other>", {4}}}) {
    directory.Write("tokenizer_config.json", absl::StrCat(R"({"eos_token":")", name, R"("})"));
    const auto checkpoint = Checkpoint::Open(directory.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_EQ((*checkpoint)->config().eos_token_ids, ids) << name;
  }
}

// Two shards: "a" in one.safetensors, "b" in two.safetensors.
class CheckpointIndex : public ::testing::Test {
 protected:
  CheckpointIndex() {
    directory_.Write("config.json", kConfig);
    directory_.Write("one.safetensors", MatrixFile("a", 2, 2, 10));
    directory_.Write("two.safetensors", MatrixFile("b", 1, 2, 20));
  }
  std::string IndexError(const std::string& text) {
    directory_.Write(kIndex, text);
    const std::string message = OpenError(directory_);
    EXPECT_THAT(message, HasSubstr(directory_.path().string()));
    return message;
  }
  TempDirectory directory_;
};

TEST_F(CheckpointIndex, TensorsComeFromTheirFiles) {
  directory_.Write(kIndex, R"({"metadata":{"total_size":24},
      "weight_map":{"b":"two.safetensors","a":"one.safetensors"}})");
  const auto checkpoint = Checkpoint::Open(directory_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT((*checkpoint)->tensor_names(), ElementsAre("a", "b"));
  EXPECT_EQ((*checkpoint)->total_bytes(), 24);
  float out[2];
  ASSERT_TRUE((*checkpoint)->Read(**(*checkpoint)->Find("a"), 1, 2, 0, 2, out).ok());
  EXPECT_THAT(out, ElementsAre(12, 13));
  ASSERT_TRUE((*checkpoint)->Read(**(*checkpoint)->Find("b"), 0, 1, 0, 2, out).ok());
  EXPECT_THAT(out, ElementsAre(20, 21));
}

TEST_F(CheckpointIndex, ASingleFileWins) {
  directory_.Write(kIndex, R"({"weight_map":{"a":"one.safetensors"}})");
  directory_.Write("model.safetensors", MatrixFile("single", 1, 1));
  const auto checkpoint = Checkpoint::Open(directory_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT((*checkpoint)->tensor_names(), ElementsAre("single"));
}

TEST_F(CheckpointIndex, NamesThatLeaveTheDirectoryAreRefused) {
  for (const char* name :
       {"/etc/passwd", "../one.safetensors", "..", ".", "", "sub/one.safetensors",
        "./one.safetensors", "one.safetensors/", "a\\\\one.safetensors", "one.safetensors\\u0000",
        "one\\n.safetensors", "one.bin", "/proc/self/mem"}) {
    EXPECT_THAT(IndexError(absl::StrCat(R"({"weight_map":{"a":")", name, R"("}})")),
                HasSubstr("only plain *.safetensors names"))
        << name;
  }
}

TEST_F(CheckpointIndex, LinksThatLeaveTheDirectoryAreRefused) {
  const TempDirectory elsewhere;
  elsewhere.Write("out.safetensors", MatrixFile("c", 1, 1));
  fs::create_symlink(elsewhere.path() / "out.safetensors", directory_.path() / "c.safetensors");
  EXPECT_THAT(IndexError(R"({"weight_map":{"c":"c.safetensors"}})"),
              HasSubstr("outside the model directory"));
}

TEST_F(CheckpointIndex, LinksInsideTheDirectoryAreFollowed) {
  fs::create_symlink("one.safetensors", directory_.path() / "link.safetensors");
  directory_.Write(kIndex, R"({"weight_map":{"a":"link.safetensors"}})");
  EXPECT_TRUE(Checkpoint::Open(directory_.path()).ok());
}

// A repository in a cache, whose one file of weights links to a blob beside the snapshots.
class CheckpointHubCache : public ::testing::Test {
 protected:
  CheckpointHubCache() {
    cache_.Write(kSnapshot + "/config.json", kConfig);
    cache_.Write(kSnapshot + "/model.safetensors.index.json",
                 R"({"weight_map":{"a":"m.safetensors"}})");
    fs::create_directories(cache_ / (kRepository + "/blobs"));
    fs::create_symlink("../../blobs/123", cache_ / (kSnapshot + "/m.safetensors"));
  }
  // The blob is a link to this file of the cache.
  void WriteBlobElsewhere(const std::string& file) {
    fs::create_symlink(cache_.Write(file, MatrixFile("a", 1, 1)),
                       cache_ / (kRepository + "/blobs/123"));
  }
  absl::Status Open() { return Checkpoint::Open(cache_ / kSnapshot).status(); }

  const std::string kRepository = "models--meta-llama--Tiny";
  const std::string kSnapshot = kRepository + "/snapshots/abc";
  const TempDirectory cache_;
};

TEST_F(CheckpointHubCache, LinksToBlobsAreFollowed) {
  cache_.Write(kRepository + "/blobs/123", MatrixFile("a", 1, 1));
  EXPECT_EQ(Open(), absl::OkStatus());
}

TEST_F(CheckpointHubCache, BlobsThatRepositoriesShareAreFollowed) {
  WriteBlobElsewhere("blobs/12/1234");
  EXPECT_EQ(Open(), absl::OkStatus());
}

TEST_F(CheckpointHubCache, LinksThatLeaveItAreRefused) {
  WriteBlobElsewhere("elsewhere/12/1234");
  EXPECT_THAT(std::string(Open().message()), HasSubstr("outside the model directory"));
}

TEST_F(CheckpointIndex, LiesAreRefused) {
  EXPECT_THAT(IndexError(R"({"weight_map":{"a":"two.safetensors"}})"),
              HasSubstr("weight_map says \"a\" is in two.safetensors, which has no such tensor"));
  EXPECT_THAT(IndexError(R"({"weight_map":{"a":"two.safetensors","b":"one.safetensors"}})"),
              HasSubstr("which has no such tensor"));
  EXPECT_THAT(IndexError(R"({"weight_map":{"a":"three.safetensors"}})"), HasSubstr("is missing"));
  directory_.Write("again.safetensors", MatrixFile("a", 1, 1));
  EXPECT_THAT(IndexError(R"({"weight_map":{"a":"one.safetensors","x":"again.safetensors"}})"),
              HasSubstr("tensor \"a\" is in two files"));
}

TEST_F(CheckpointIndex, MalformedIndexesAreRefused) {
  EXPECT_THAT(IndexError("{}"), HasSubstr("weight_map is missing"));
  EXPECT_THAT(IndexError("[]"), HasSubstr("weight_map is missing"));
  EXPECT_THAT(IndexError(R"({"weight_map":{}})"), HasSubstr("weight_map is missing"));
  EXPECT_THAT(IndexError(R"({"weight_map":[]})"), HasSubstr("weight_map is missing"));
  EXPECT_THAT(IndexError(R"({"weight_map":{"a":1}})"), HasSubstr("is 1, not a file name"));
  EXPECT_THAT(IndexError(R"({"weight_map":{"a":"x","a":"y"}})"), HasSubstr("occurs twice"));
  EXPECT_THAT(IndexError("{"), HasSubstr("not valid JSON"));
}

TEST(CheckpointAssets, Stories260KOpens) {
  const fs::path path = testing::SharedAssets() / "models/stories260K";
  SKIP_WITHOUT_ASSET(path);
  const auto checkpoint = Checkpoint::Open(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_TRUE(CheckLlamaTensors(**checkpoint).ok());
  EXPECT_THAT(UnknownTensors(**checkpoint), IsEmpty());
  EXPECT_EQ((*checkpoint)->config().num_parameters(), 260'032);
  EXPECT_EQ((*checkpoint)->total_bytes(), 4 * 260'032);
  EXPECT_EQ((*checkpoint)->config().head_dim, 8);
  EXPECT_EQ((*checkpoint)->generation_defaults().do_sample, false);
  EXPECT_THAT((*checkpoint)->config().eos_token_ids, ElementsAre(2));
}

TEST(CheckpointAssets, TinyLlama31Opens) {
  const fs::path path = testing::SharedAssets() / "models/tiny-llama31";
  SKIP_WITHOUT_ASSET(path);
  const auto checkpoint = Checkpoint::Open(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_TRUE(CheckLlamaTensors(**checkpoint).ok());
  EXPECT_EQ((*checkpoint)->config().num_parameters(), 869'504);
  ASSERT_TRUE((*checkpoint)->config().rope_scaling.has_value());
  EXPECT_FALSE((*checkpoint)->config().tie_word_embeddings);
}

}  // namespace
}  // namespace lockstep
