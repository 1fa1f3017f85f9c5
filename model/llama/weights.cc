#include "model/llama/weights.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "model/checkpoint/stored_matrix.h"
#include "model/llama/weight_cache.h"
#include "model/llama/weight_file.h"

namespace lockstep {
namespace {

constexpr char kEmbedding[] = "model.embed_tokens.weight";

std::string LayerTensor(int64_t layer, const std::string& name) {
  return "model.layers." + std::to_string(layer) + "." + name;
}

absl::StatusOr<const TensorInfo*> FindTensor(const Checkpoint& checkpoint, std::string_view name,
                                             const std::vector<int64_t>& shape) {
  ASSIGN_OR_RETURN(const TensorInfo* tensor, checkpoint.Find(name));
  if (tensor->shape != shape) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tensor %s has shape [%s]; config.json implies [%s]", name,
                        absl::StrJoin(tensor->shape, ", "), absl::StrJoin(shape, ", ")));
  }
  if (!tensor->dtype.has_value()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "tensor %s has dtype %s; supported: F32, F16, BF16", name, tensor->dtype_name));
  }
  return tensor;
}

// f32 where they differ, so that nothing is lost.
DType CommonDType(std::initializer_list<DType> dtypes) {
  const DType first = *dtypes.begin();
  const bool all_same =
      std::all_of(dtypes.begin(), dtypes.end(), [&](DType dtype) { return dtype == first; });
  return all_same ? first : DType::kF32;
}

// Allocates the stage's weights and notes which part of which tensor goes where; then reads
// everything at once. The weights' addresses must not change in between.
class StageLoader {
 public:
  StageLoader(const WeightSource& source, Backend& backend, Communicator& tp_group,
              StageWeights& weights)
      : source_(source),
        config_(source.checkpoint.config()),
        shape_(source.shape),
        backend_(backend),
        tp_group_(tp_group),
        weights_(weights) {}

  absl::Status Allocate();
  absl::Status Read(const LoadProgress& progress, LoadStats& stats);
  void Count(LoadStats& stats) const;

 private:
  absl::Status AddVocabulary();
  absl::Status AddLayer(int64_t layer, LayerWeights& weights);
  absl::Status AddAttention(int64_t layer, LayerWeights& weights);
  absl::Status AddMlp(int64_t layer, LayerWeights& weights);
  absl::Status AddNorm(const std::string& name, DeviceBuffer& norm);

  absl::StatusOr<const TensorInfo*> Find(std::string_view name,
                                         const std::vector<int64_t>& shape) const {
    return FindTensor(source_.checkpoint, name, shape);
  }
  absl::StatusOr<const StoredMatrix*> Open(const MatrixName& name) {
    ASSIGN_OR_RETURN(StoredMatrix matrix, OpenMatrix(source_.checkpoint, name));
    matrices_.push_back(std::make_unique<StoredMatrix>(std::move(matrix)));
    return matrices_.back().get();
  }
  const RowSource* Plain(const TensorInfo* tensor) {
    plain_.push_back(PlainSource(source_.checkpoint, *tensor));
    return plain_.back().get();
  }
  // Rows of a matrix, all columns of them or some.
  template <typename Layer>
  void AddRows(const StoredMatrix* matrix, Range rows, Range columns, Layer& layer,
               int64_t first_row) {
    for (const auto& source : matrix->sources) {
      parts_.push_back(
          {source.get(), rows, columns, [&layer, first_row](int64_t row, const HostRows& r) {
             layer.Fill(first_row + row, r);
           }});
    }
  }
  DType KeptDType(std::initializer_list<DType> dtypes) const {
    return HeldDType(source_.dtype, CommonDType(dtypes), backend_.HoldsF16());
  }
  // What matrices that are multiplied as one become: `shape`, as those of this form are held.
  LinearShape Kept(std::initializer_list<const StoredMatrix*> matrices, LinearShape shape) const;

  const WeightSource& source_;
  const ModelConfig& config_;
  const StageShape& shape_;
  Backend& backend_;
  Communicator& tp_group_;
  StageWeights& weights_;
  std::vector<std::unique_ptr<StoredMatrix>> matrices_;
  std::vector<std::unique_ptr<RowSource>> plain_;
  std::vector<TensorPart> parts_;
  int64_t norm_bytes_ = 0;  // held
};

LinearShape StageLoader::Kept(std::initializer_list<const StoredMatrix*> matrices,
                              LinearShape shape) const {
  DType dtype = (*matrices.begin())->dtype;
  shape.quantization = source_.quantize;
  for (const StoredMatrix* matrix : matrices) {
    dtype = CommonDType({dtype, matrix->dtype});
    if (matrix->native != Quantization::kNone) shape.quantization = matrix->native;
    shape.activation_bound = std::min(shape.activation_bound, matrix->activation_bound);
  }
  shape.dtype = KeptDType({dtype});
  return shape;
}

absl::Status StageLoader::Allocate() {
  weights_.layers.resize(static_cast<size_t>(shape_.layers.size()));
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    RETURN_IF_ERROR(AddLayer(shape_.layers.begin + static_cast<int64_t>(i), weights_.layers[i]));
  }
  if (shape_.is_last) RETURN_IF_ERROR(AddNorm("model.norm", weights_.final_norm));
  return AddVocabulary();
}

// A tied table that is both embedding and head on this rank is read once.
absl::Status StageLoader::AddVocabulary() {
  const std::vector<int64_t> table_shape = {config_.vocab_size, config_.hidden_size};
  const TensorInfo* embedding = nullptr;
  const TensorInfo* head = nullptr;
  if (shape_.is_first || config_.tie_word_embeddings) {
    ASSIGN_OR_RETURN(embedding, Find(kEmbedding, table_shape));
  }
  if (shape_.is_last && config_.tie_word_embeddings) head = embedding;
  if (shape_.is_last && !config_.tie_word_embeddings) {
    ASSIGN_OR_RETURN(head, Find("lm_head.weight", table_shape));
  }
  if (shape_.is_first) {
    ASSIGN_OR_RETURN(weights_.embedding,
                     VocabParallelEmbedding::Create(backend_, tp_group_,
                                                    {.first_id = shape_.vocab.begin,
                                                     .num_rows = shape_.vocab.size(),
                                                     .hidden = shape_.hidden,
                                                     .dtype = KeptDType({*embedding->dtype})}));
  }
  if (shape_.is_last) {
    ASSIGN_OR_RETURN(weights_.head,
                     VocabParallelHead::Create(
                         backend_, shape_.vocab.size(), shape_.hidden, KeptDType({*head->dtype}),
                         HeadQuantization(*config_.HeldAs(source_.quantize))));
  }
  if (shape_.is_first && embedding == head) {
    parts_.push_back({Plain(embedding),
                      shape_.vocab,
                      {0, shape_.hidden},
                      [this](int64_t row, const HostRows& r) {
                        weights_.embedding->Fill(row, r);
                        weights_.head->Fill(row, r);
                      }});
    return absl::OkStatus();
  }
  const auto add = [this](const TensorInfo* table, auto& layer) {
    parts_.push_back(
        {Plain(table), shape_.vocab, {0, shape_.hidden}, [&layer](int64_t row, const HostRows& r) {
           layer.Fill(row, r);
         }});
  };
  if (shape_.is_first) add(embedding, *weights_.embedding);
  if (shape_.is_last) add(head, *weights_.head);
  return absl::OkStatus();
}

absl::Status StageLoader::AddLayer(int64_t layer, LayerWeights& weights) {
  RETURN_IF_ERROR(AddNorm(LayerTensor(layer, "input_layernorm"), weights.attention_norm));
  RETURN_IF_ERROR(AddAttention(layer, weights));
  RETURN_IF_ERROR(AddNorm(LayerTensor(layer, "post_attention_layernorm"), weights.mlp_norm));
  return AddMlp(layer, weights);
}

absl::Status StageLoader::AddAttention(int64_t layer, LayerWeights& weights) {
  const int64_t hidden = shape_.hidden;
  const int64_t head_dim = shape_.head_dim;
  const int64_t q_rows = config_.num_heads * head_dim;
  const int64_t kv_rows = config_.num_kv_heads * head_dim;
  const auto open_qkv = [&](const char* name, int64_t rows) {
    return Open({.name = LayerTensor(layer, name),
                 .rows = rows,
                 .columns = hidden,
                 .keeps_float8 = backend_.HoldsFp8(shape_.qkv_width(), hidden)});
  };
  ASSIGN_OR_RETURN(const auto* q, open_qkv("self_attn.q_proj", q_rows));
  ASSIGN_OR_RETURN(const auto* k, open_qkv("self_attn.k_proj", kv_rows));
  ASSIGN_OR_RETURN(const auto* v, open_qkv("self_attn.v_proj", kv_rows));
  ASSIGN_OR_RETURN(const auto* o,
                   Open({.name = LayerTensor(layer, "self_attn.o_proj"),
                         .rows = hidden,
                         .columns = q_rows,
                         .num_k_slices = shape_.attention_k_slices * tp_group_.size(),
                         .stored_k_slices = NumKSlices(config_.num_heads, 1),
                         .keeps_float8 = backend_.HoldsFp8(hidden, shape_.q_width())}));
  ASSIGN_OR_RETURN(
      weights.qkv,
      ColumnParallelLinear::Create(
          backend_, Kept({q, k, v}, {.out_features = shape_.qkv_width(), .in_features = hidden})));
  ASSIGN_OR_RETURN(
      weights.attention_output,
      RowParallelLinear::Create(backend_, tp_group_,
                                Kept({o}, {.out_features = hidden,
                                           .in_features = shape_.q_width(),
                                           .num_k_slices = shape_.attention_k_slices})));
  const auto rows_of = [head_dim](Range heads) {
    return Range{heads.begin * head_dim, heads.end * head_dim};
  };
  const Range all = {0, hidden};
  AddRows(q, rows_of(shape_.query_heads), all, weights.qkv, 0);
  AddRows(k, rows_of(shape_.kv_heads), all, weights.qkv, shape_.q_width());
  AddRows(v, rows_of(shape_.kv_heads), all, weights.qkv, shape_.q_width() + shape_.kv_width());
  AddRows(o, all, rows_of(shape_.query_heads), weights.attention_output, 0);
  return absl::OkStatus();
}

absl::Status StageLoader::AddMlp(int64_t layer, LayerWeights& weights) {
  const int64_t hidden = shape_.hidden;
  const int64_t whole = config_.intermediate_size;
  const int64_t mine = shape_.intermediate.size();
  const auto open_gate_up = [&](const char* name) {
    return Open({.name = LayerTensor(layer, name),
                 .rows = whole,
                 .columns = hidden,
                 .keeps_float8 = backend_.HoldsFp8(2 * mine, hidden)});
  };
  ASSIGN_OR_RETURN(const auto* gate, open_gate_up("mlp.gate_proj"));
  ASSIGN_OR_RETURN(const auto* up, open_gate_up("mlp.up_proj"));
  ASSIGN_OR_RETURN(const auto* down, Open({.name = LayerTensor(layer, "mlp.down_proj"),
                                           .rows = hidden,
                                           .columns = whole,
                                           .num_k_slices = shape_.mlp_k_slices * tp_group_.size(),
                                           .stored_k_slices = NumKSlices(whole, 1),
                                           .keeps_float8 = backend_.HoldsFp8(hidden, mine)}));
  ASSIGN_OR_RETURN(
      weights.gate_up,
      ColumnParallelLinear::Create(
          backend_, Kept({gate, up}, {.out_features = 2 * mine, .in_features = hidden})));
  ASSIGN_OR_RETURN(weights.down,
                   RowParallelLinear::Create(backend_, tp_group_,
                                             Kept({down}, {.out_features = hidden,
                                                           .in_features = mine,
                                                           .num_k_slices = shape_.mlp_k_slices})));
  const Range all = {0, hidden};
  AddRows(gate, shape_.intermediate, all, weights.gate_up, 0);
  AddRows(up, shape_.intermediate, all, weights.gate_up, mine);
  AddRows(down, all, shape_.intermediate, weights.down, 0);
  return absl::OkStatus();
}

absl::Status StageLoader::AddNorm(const std::string& name, DeviceBuffer& norm) {
  ASSIGN_OR_RETURN(const TensorInfo* tensor, Find(name + ".weight", {shape_.hidden}));
  ASSIGN_OR_RETURN(norm, backend_.Allocate(shape_.hidden * static_cast<int64_t>(sizeof(float))));
  norm_bytes_ += norm.bytes();
  parts_.push_back(
      {Plain(tensor), {0, 1}, {0, shape_.hidden}, [this, &norm](int64_t, const HostRows& row) {
         backend_.FillTable(norm.data(), DType::kF32, shape_.hidden, row);
       }});
  return absl::OkStatus();
}

absl::Status StageLoader::Read(const LoadProgress& progress, LoadStats& stats) {
  ASSIGN_OR_RETURN(const ReadStats read,
                   ReadParts(parts_, backend_, source_.num_threads, progress));
  stats.loaded_bytes = read.bytes;
  stats.pinned_bytes = read.pinned_bytes;
  return absl::OkStatus();
}

void StageLoader::Count(LoadStats& stats) const {
  for (const TensorPart& part : parts_) stats.shard_bytes += part.bytes();
  stats.weight_bytes = norm_bytes_;
  for (const LayerWeights& layer : weights_.layers) {
    stats.weight_bytes += layer.qkv.bytes() + layer.attention_output.bytes() +
                          layer.gate_up.bytes() + layer.down.bytes();
  }
  if (weights_.embedding.has_value()) stats.weight_bytes += weights_.embedding->bytes();
  if (weights_.head.has_value()) stats.weight_bytes += weights_.head->bytes();
}

absl::Status FillFile(WeightFile& file, const WeightSource& source, StageLoader& loader,
                      LoadStats& stats) {
  const LoadProgress progress = [&](int64_t bytes_done, int64_t bytes_total) {
    file.ShowProgress();  // or who waits for it would be taken for one that hangs
    if (source.progress != nullptr) source.progress(bytes_done, bytes_total);
  };
  file.MakeHugePages(source.num_threads);
  RETURN_IF_ERROR(loader.Read(progress, stats));
  return file.Finish();
}

// file: where the weights lie; null: in memory of this process.
absl::StatusOr<StageWeights> LoadInto(WeightFile* file, const WeightSource& source,
                                      Backend& backend, Communicator& tp_group, LoadStats& stats) {
  stats = {};
  StageWeights weights;
  StageLoader loader(source, backend, tp_group, weights);
  {
    const PlacedInFile placed(backend, file);
    RETURN_IF_ERROR(loader.Allocate());
  }
  loader.Count(stats);
  if (file != nullptr && file->is_complete()) {
    file->Populate(source.num_threads, source.progress);
    stats.mapped_bytes = stats.weight_bytes;
    return weights;
  }
  RETURN_IF_ERROR(file == nullptr ? loader.Read(source.progress, stats)
                                  : FillFile(*file, source, loader, stats));
  return weights;
}

}  // namespace

std::optional<WeightDType> WeightDTypeOf(std::string_view name) {
  if (name == "auto") return WeightDType::kAuto;
  if (name == "f32") return WeightDType::kF32;
  if (name == "bf16") return WeightDType::kBF16;
  if (name == "f16") return WeightDType::kF16;
  return std::nullopt;
}

DType HeldDType(WeightDType wanted, DType stored, bool holds_f16) {
  switch (wanted) {
    case WeightDType::kAuto:
      return stored == DType::kF16 && !holds_f16 ? DType::kF32 : stored;
    case WeightDType::kF32:
      return DType::kF32;
    case WeightDType::kBF16:
      return DType::kBF16;
    case WeightDType::kF16:
      break;
  }
  return DType::kF16;
}

absl::StatusOr<StageWeights> LoadIntoCache(const WeightSource& source, Backend& backend,
                                           Communicator& tp_group, LoadStats& stats) {
  ASSIGN_OR_RETURN(const std::unique_ptr<WeightFile> file, OpenWeightFile(source, backend));
  auto weights = LoadInto(file.get(), source, backend, tp_group, stats);
  if (!weights.ok()) file->Discard();
  return weights;
}

// A cache that cannot be used costs time, not the start.
absl::StatusOr<StageWeights> LoadStageWeights(const WeightSource& source, Backend& backend,
                                              Communicator& tp_group, LoadStats& stats) {
  RETURN_IF_ERROR(source.checkpoint.config().HeldAs(source.quantize).status());
  if (source.dtype == WeightDType::kF16 && !backend.HoldsF16()) {
    return absl::InvalidArgumentError(kNoF16OnCpus);
  }
  if (UsesCache(source, backend)) {
    auto weights = LoadIntoCache(source, backend, tp_group, stats);
    if (weights.ok()) return weights;
    if (source.on_notice != nullptr) {
      source.on_notice(absl::StrFormat("weights are packed in memory, not kept in %s: %s",
                                       source.cache.string(), weights.status().message()));
    }
  }
  return LoadInto(nullptr, source, backend, tp_group, stats);
}

absl::StatusOr<DType> KvCacheDType(const Checkpoint& checkpoint, WeightDType dtype,
                                   bool holds_f16) {
  const ModelConfig& config = checkpoint.config();
  std::vector<DType> dtypes;
  for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}) {
    const bool is_query = dtypes.empty();
    ASSIGN_OR_RETURN(const StoredMatrix matrix,
                     OpenMatrix(checkpoint, {LayerTensor(0, name),
                                             (is_query ? config.num_heads : config.num_kv_heads) *
                                                 config.head_dim,
                                             config.hidden_size}));
    dtypes.push_back(matrix.dtype);
  }
  return HeldDType(dtype, CommonDType({dtypes[0], dtypes[1], dtypes[2]}), holds_f16);
}

}  // namespace lockstep
