// Model folders as Hugging Face writes them: config.json and safetensors files; and models made of random numbers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.hpp"
#include "weights/source.hpp"

namespace stet::weights {

/// Opens one .safetensors file, or a folder with model.safetensors, or with model.safetensors.index.json and its
/// shards. Checks every header completely (format: huggingface/safetensors README): sizes, types, shapes, offsets
/// without gaps or overlaps, no duplicate names. Data is read with pread, so a file that shrinks later is a read error
/// that names the tensor and offset, never a fault (docs/decisions/0002-read-weights-by-pread.md).
Result<std::unique_ptr<Source>> open_safetensors(const std::filesystem::path& path);

/// Parses the text of a config.json. `name` names it in errors. Code::unsupported refuses a variant by key and value,
/// Code::corrupt a value that cannot be. Sizes have to be there; other missing keys mean what Hugging Face's GPT2Config
/// means by their absence, except that its default start and end token 50256 holds only in a vocabulary that reaches so
/// far. What comes back satisfies check_config.
Result<ModelConfig> parse_config(std::string_view json, const std::string& name);

/// Reads `folder`/config.json.
Result<ModelConfig> read_config(const std::filesystem::path& folder);

/// A config whose sizes make sense together: all from 1 to 2^31 - 1 (layers to 65,536), heads divide the width, 3 x
/// width fits an int, the model has less than 2^60 parameters, the start and end token are in the vocabulary. `name`
/// begins errors.
Result<void> check_config(const ModelConfig& config, const std::string& name);

/// A model that lives only in memory: "random:gpt2", "random:gpt2-medium", "random:char" or "random:FILE" (a
/// config.json whose path holds no comma), with overrides as in "random:char,ctx=16384,seed=7" (keys: ctx, layers,
/// heads, width, inner, vocab, seed). Overriding the width alone keeps inner = 4 x width; a start or end token beyond a
/// smaller vocabulary goes.
///
/// `char` is the published character GPT (width 128, 4 layers, 4 heads, vocabulary 65, context 128, its own head) in
/// GPT-2's form: 826,368 parameters, of which 4,608 are biases that the published one (821,760) does not have.
bool is_random(std::string_view spec) noexcept;
struct RandomModel {
  ModelConfig config;
  std::unique_ptr<Source> source;
};
Result<RandomModel> make_random(std::string_view spec);

/// Name and shape of a tensor, and mean and standard deviation of its values in a random model.
struct TensorSpec {
  std::string name;
  std::vector<std::int64_t> shape;
  double random_mean = 0, random_std = 0.02;
};

/// Every tensor that a GPT-2 of this config needs, under Hugging Face names without a prefix
/// ("h.0.attn.c_attn.weight"). Matrices are [in, out] (Conv1D's layout), embeddings and the head [vocabulary or
/// positions, width]. Precondition: check_config(config).
std::vector<TensorSpec> gpt2_tensors(const ModelConfig& config);

/// Checks a source against the tensors its config needs: missing, misshapen, unreadable and unexpected ones are named,
/// the first few of each and how many more. `where` begins the error. Returns the prefix ("" or "transformer.") of the
/// names. Mask buffers (h.N.attn.bias, h.N.attn.masked_bias) are ignored; a tied model may carry a lm_head.weight
/// (ignored when its shape is the embedding's); an untied one needs it. lm_head.weight never has the prefix.
Result<std::string> check_gpt2(const Source& source, const ModelConfig& config, const std::string& where);

}  // namespace stet::weights
