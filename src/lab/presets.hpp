// What the memory bill has to know of a model, from a config.json that Stet reads or from a table of published models,
// of which it runs only some.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.hpp"
#include "stet/cache.hpp"
#include "stet/result.hpp"
#include "stet/types.hpp"

namespace stet::lab {

/// A model in the numbers of its bill. Work is in multiply-adds of one decoded token.
struct Shape {
  std::string name, source;  // of a preset the repository on the Hub whose config.json says so; else empty
  std::string attention;     // "MHA, 12 heads of 64", "GQA, 8 of 32 heads of 128", "MQA, ...", "MLA, ..."
  Pos context = 0;
  DType dtype = DType::f32;         // of the weights
  std::int64_t parameters = 0;      // all of them, whatever a token uses
  std::size_t weight_bytes = 0;     // matrices packed as Stet packs them, vectors in the type of the arithmetic
  CacheSpec cache;                  // one entry a layer, in the type of the arithmetic
  double layer_work = 0;            // of the layers' matrices, attention left out; of experts those that a token uses
  double head_work = 0;             // of the output head
  std::vector<double> attend_work;  // of each layer, for one visible position
};

/// Of a model that Stet runs; `config` satisfies weights::check_config.
Shape shape_of(const ModelConfig& config, const std::string& name, DType dtype);

/// The names of all presets: "gpt2", "llama-3-8b", ...
std::vector<std::string> preset_names();

/// Code::not_found says which presets have names like it.
Result<Shape> preset(std::string_view name, DType dtype);

/// Of `names` those that somebody who wrote `name` may have meant, nearest first, at most three.
std::vector<std::string> names_like(std::string_view name, const std::vector<std::string>& names);

}  // namespace stet::lab
