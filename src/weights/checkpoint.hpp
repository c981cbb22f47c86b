// Model folders as Hugging Face writes them: config.json and safetensors files.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.hpp"
#include "weights/source.hpp"

namespace stet::weights {

/// Opens one .safetensors file, or a folder with model.safetensors, or with model.safetensors.index.json and its shards.
/// Checks every header completely (format: huggingface/safetensors README): sizes, types, shapes, offsets without gaps or
/// overlaps, no duplicate names. Data is read with pread, so a file that shrinks later is a read error that names the tensor
/// and offset, never a fault (docs/decisions).
Result<std::unique_ptr<Source>> open_safetensors(const std::filesystem::path& path);

/// Parses the text of a config.json. `name` names it in errors. Unsupported variants are refused by key and value.
Result<ModelConfig> parse_config(std::string_view json, const std::string& name);

/// Reads `folder`/config.json.
Result<ModelConfig> read_config(const std::filesystem::path& folder);

/// A model that lives only in memory: "random:gpt2", "random:gpt2-medium", "random:char" or "random:FILE" (a config.json),
/// with overrides as in "random:char,ctx=16384,seed=7" (keys: ctx, layers, heads, width, inner, vocab, seed).
bool is_random(std::string_view spec) noexcept;
struct RandomModel {
  ModelConfig config;
  std::unique_ptr<Source> source;
};
Result<RandomModel> make_random(std::string_view spec);

/// Names, shapes and the standard deviation used for random values of every tensor that a model of this config needs, under Hugging Face names
/// without a prefix ("h.0.attn.c_attn.weight").
struct TensorSpec {
  std::string name;
  std::vector<std::int64_t> shape;
  double random_mean = 0, random_std = 0.02;
};
std::vector<TensorSpec> gpt2_tensors(const ModelConfig& config);

/// Checks a source against the tensors its config needs: missing, misshapen and unexpected ones are named. Returns the prefix
/// ("" or "transformer.") of the names. Mask buffers (h.N.attn.bias, h.N.attn.masked_bias) are ignored; a tied model may carry
/// a lm_head.weight (ignored when its shape fits the embedding's); an untied one needs it.
Result<std::string> check_gpt2(const Source& source, const ModelConfig& config, const std::string& where);

}  // namespace stet::weights
