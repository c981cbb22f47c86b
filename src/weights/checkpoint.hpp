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

/// Parses the text of a config.json of GPT-2, Llama, Mistral or Qwen2, in the spellings of transformers 4 and 5.
/// `name` names it in errors. Code::unsupported refuses a variant by key and value, Code::corrupt a value that cannot
/// be. Sizes have to be there; other missing keys mean what the family's class in transformers means by their absence,
/// except that GPT2Config's default start and end token 50256 holds only in a vocabulary that reaches so far, and the
/// other families have none by default. Keys that the class does not read (a Llama's sliding_window) say nothing.
/// What comes back satisfies check_config; its windows are empty when every layer sees everything.
Result<ModelConfig> parse_config(std::string_view json, const std::string& name);

/// True for the families that are one architecture with Llama: "llama", "mistral", "qwen2".
bool is_llama(const ModelConfig& config) noexcept;

/// Reads `folder`/config.json.
Result<ModelConfig> read_config(const std::filesystem::path& folder);

/// A config whose sizes make sense together: all from 1 to 2^31 - 1 (layers to 65,536), the model has less than 2^60
/// parameters, the start and end token are in the vocabulary. A GPT-2's heads divide its width, 3 x width fits an int.
/// A Llama's KV heads divide its heads, head_dim is even; the widths of query, key and value together, and 2 x inner,
/// fit an int; theta and factor are at least 1, low_frequency < high_frequency; windows are not negative and not more
/// than layers. Every family that is not is_llama is taken for GPT-2. `name` begins errors.
Result<void> check_config(const ModelConfig& config, const std::string& name);

/// A model that lives only in memory: "random:gpt2", "random:gpt2-medium", "random:char", "random:llama-tiny",
/// "random:llama-1b" (the shape of Llama 3.2 1B, with 8,192 positions) or "random:FILE" (a config.json whose path holds
/// no comma), with overrides as in "random:char,ctx=16384,seed=7" (keys: ctx, layers, heads, width, inner, vocab, seed;
/// for Llama's families kv_heads, and window, of all layers). What was not overridden follows where it did before:
/// inner = 4 x width, kv_heads = heads, head_dim = width / heads. New layers have the last one's window; a start or end
/// token beyond a smaller vocabulary goes.
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

/// Every tensor that a Llama, Mistral or Qwen2 of this config needs, under Hugging Face names without a prefix
/// ("layers.0.self_attn.q_proj.weight"). Matrices are [out, in] (Linear's layout), embeddings and the head [vocabulary,
/// width]; queries are heads x head_dim wide, keys and values kv_heads x head_dim. Precondition: check_config(config).
std::vector<TensorSpec> llama_tensors(const ModelConfig& config);

/// check_gpt2 for these families. The prefix is "" or "model."; the ignored buffers are rotary_emb.inv_freq and
/// layers.N.self_attn.rotary_emb.inv_freq.
Result<std::string> check_llama(const Source& source, const ModelConfig& config, const std::string& where);

/// gpt2_tensors or llama_tensors, check_gpt2 or check_llama, by config.family.
std::vector<TensorSpec> tensors_of(const ModelConfig& config);
Result<std::string> check_tensors(const Source& source, const ModelConfig& config, const std::string& where);

}  // namespace stet::weights
