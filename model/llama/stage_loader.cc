#include "model/llama/stage_loader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"

namespace lockstep {
namespace {

constexpr char kEmbedding[] = "model.embed_tokens.weight";

}  // namespace

std::string LayerTensor(int64_t layer, const std::string& name) {
  return "model.layers." + std::to_string(layer) + "." + name;
}

DType CommonDType(std::initializer_list<DType> dtypes) {
  const DType first = *dtypes.begin();
  const bool all_same =
      std::all_of(dtypes.begin(), dtypes.end(), [&](DType dtype) { return dtype == first; });
  return all_same ? first : DType::kF32;
}

absl::StatusOr<const TensorInfo*> StageLoader::Find(std::string_view name,
                                                    const std::vector<int64_t>& shape) const {
  ASSIGN_OR_RETURN(const TensorInfo* tensor, source_.checkpoint.Find(name));
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

absl::StatusOr<const StoredMatrix*> StageLoader::Open(const MatrixName& name) {
  ASSIGN_OR_RETURN(StoredMatrix matrix, OpenMatrix(source_.checkpoint, name));
  matrices_.push_back(std::make_unique<StoredMatrix>(std::move(matrix)));
  return matrices_.back().get();
}

const RowSource* StageLoader::Plain(const TensorInfo* tensor) {
  plain_.push_back(PlainSource(source_.checkpoint, *tensor));
  return plain_.back().get();
}

template <typename Layer>
void StageLoader::AddRows(const StoredMatrix* matrix, Range rows, Range columns, Layer& layer,
                          int64_t first_row) {
  for (const auto& source : matrix->sources) {
    parts_.push_back(
        {source.get(), rows, columns,
         [&layer, first_row](int64_t row, const HostRows& r) { layer.Fill(first_row + row, r); }});
  }
}

DType StageLoader::KeptDType(std::initializer_list<DType> dtypes) const {
  return HeldDType(source_.dtype, CommonDType(dtypes), backend_.HoldsF16());
}

bool StageLoader::SparesSome(int64_t layer, std::initializer_list<const char*> names) const {
  if (source_.quantize != Quantization::kNone) return false;
  const auto is_quantized = [&](const char* name) {
    return source_.checkpoint.HasQuantized(LayerTensor(layer, name));
  };
  const auto num_quantized = std::count_if(names.begin(), names.end(), is_quantized);
  return num_quantized > 0 && num_quantized < std::ssize(names);
}

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
  if (shape_.is_last) RETURN_IF_ERROR(AddNorm("model.norm", shape_.hidden, weights_.final_norm));
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
  RETURN_IF_ERROR(
      AddNorm(LayerTensor(layer, "input_layernorm"), shape_.hidden, weights.attention_norm));
  RETURN_IF_ERROR(AddAttention(layer, weights));
  RETURN_IF_ERROR(AddHeadVectors(layer, weights));
  RETURN_IF_ERROR(
      AddNorm(LayerTensor(layer, "post_attention_layernorm"), shape_.hidden, weights.mlp_norm));
  return AddMlp(layer, weights);
}

absl::Status StageLoader::AddAttention(int64_t layer, LayerWeights& weights) {
  const int64_t hidden = shape_.hidden;
  const int64_t head_dim = shape_.head_dim;
  const int64_t q_rows = config_.num_heads * head_dim;
  const int64_t kv_rows = config_.num_kv_heads * head_dim;
  const bool qkv_as_numbers =
      SparesSome(layer, {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"});
  const auto open_qkv = [&](const char* name, int64_t rows) {
    return Open({.name = LayerTensor(layer, name),
                 .rows = rows,
                 .columns = hidden,
                 .keeps_float8 = backend_.HoldsFp8(shape_.qkv_width(), hidden),
                 .as_numbers = qkv_as_numbers});
  };
  ASSIGN_OR_RETURN(const auto* q, open_qkv("self_attn.q_proj", q_rows));
  ASSIGN_OR_RETURN(const auto* k, open_qkv("self_attn.k_proj", kv_rows));
  ASSIGN_OR_RETURN(const auto* v, open_qkv("self_attn.v_proj", kv_rows));
  ASSIGN_OR_RETURN(const auto* o,
                   Open({.name = LayerTensor(layer, "self_attn.o_proj"),
                         .rows = hidden,
                         .columns = q_rows,
                         .num_k_slices = shape_.attention_k_slices * tp_group_.size(),
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
  const Range all = {0, hidden};
  AddRows(q, RowsOf(shape_.query_heads), all, weights.qkv, 0);
  AddRows(k, RowsOf(shape_.kv_heads), all, weights.qkv, shape_.q_width());
  AddRows(v, RowsOf(shape_.kv_heads), all, weights.qkv, shape_.q_width() + shape_.kv_width());
  AddRows(o, all, RowsOf(shape_.query_heads), weights.attention_output, 0);
  return absl::OkStatus();
}

// Those of families that have them.
absl::Status StageLoader::AddHeadVectors(int64_t layer, LayerWeights& weights) {
  if (config_.has_qkv_bias()) {
    RETURN_IF_ERROR(AllocateVector(shape_.qkv_width(), weights.qkv_bias));
    int64_t first = 0;
    for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
      const bool is_query = first == 0;
      const int64_t num_heads = is_query ? config_.num_heads : config_.num_kv_heads;
      const Range mine = RowsOf(is_query ? shape_.query_heads : shape_.kv_heads);
      RETURN_IF_ERROR(AddVector(LayerTensor(layer, absl::StrCat("self_attn.", name, ".bias")),
                                num_heads * shape_.head_dim, mine, first, weights.qkv_bias));
      first += mine.size();
    }
  }
  if (!config_.has_head_norms()) return absl::OkStatus();
  RETURN_IF_ERROR(AddNorm(LayerTensor(layer, "self_attn.q_norm"), shape_.head_dim, weights.q_norm));
  return AddNorm(LayerTensor(layer, "self_attn.k_norm"), shape_.head_dim, weights.k_norm);
}

absl::Status StageLoader::AddMlp(int64_t layer, LayerWeights& weights) {
  const int64_t hidden = shape_.hidden;
  const int64_t whole = config_.intermediate_size;
  const int64_t mine = shape_.intermediate.size();
  const bool gate_up_as_numbers = SparesSome(layer, {"mlp.gate_proj", "mlp.up_proj"});
  const auto open_gate_up = [&](const char* name) {
    return Open({.name = LayerTensor(layer, name),
                 .rows = whole,
                 .columns = hidden,
                 .keeps_float8 = backend_.HoldsFp8(2 * mine, hidden),
                 .as_numbers = gate_up_as_numbers});
  };
  ASSIGN_OR_RETURN(const auto* gate, open_gate_up("mlp.gate_proj"));
  ASSIGN_OR_RETURN(const auto* up, open_gate_up("mlp.up_proj"));
  ASSIGN_OR_RETURN(const auto* down, Open({.name = LayerTensor(layer, "mlp.down_proj"),
                                           .rows = hidden,
                                           .columns = whole,
                                           .num_k_slices = shape_.mlp_k_slices * tp_group_.size(),
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

absl::Status StageLoader::AddNorm(const std::string& name, int64_t size, DeviceBuffer& norm) {
  RETURN_IF_ERROR(AllocateVector(size, norm));
  return AddVector(name + ".weight", size, {0, size}, 0, norm);
}

absl::Status StageLoader::AllocateVector(int64_t size, DeviceBuffer& vector) {
  ASSIGN_OR_RETURN(vector, backend_.Allocate(size * static_cast<int64_t>(sizeof(float))));
  vector_bytes_ += vector.bytes();
  return absl::OkStatus();
}

absl::Status StageLoader::AddVector(const std::string& name, int64_t size, Range some,
                                    int64_t first, DeviceBuffer& vector) {
  ASSIGN_OR_RETURN(const TensorInfo* tensor, Find(name, {size}));
  float* const to = vector.as<float>() + first;
  parts_.push_back(
      {Plain(tensor), {0, 1}, some, [this, to, width = some.size()](int64_t, const HostRows& row) {
         backend_.FillTable(to, DType::kF32, width, row);
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
  stats.weight_bytes = vector_bytes_;
  for (const LayerWeights& layer : weights_.layers) {
    stats.weight_bytes += layer.qkv.bytes() + layer.attention_output.bytes() +
                          layer.gate_up.bytes() + layer.down.bytes();
  }
  if (weights_.embedding.has_value()) stats.weight_bytes += weights_.embedding->bytes();
  if (weights_.head.has_value()) stats.weight_bytes += weights_.head->bytes();
}

}  // namespace lockstep
