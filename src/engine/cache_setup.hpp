// From what a user asks of the cache to what the cache is asked for.
#pragma once

#include <string>

#include "stet/cache.hpp"
#include "stet/engine.hpp"

namespace stet::engine {

/// `spec`, which is what the model asks for, with the codecs and the span of the options. Code::invalid_argument names
/// a layer that there is not, or a span that cannot be.
Result<CacheSpec> with_choices(CacheSpec spec, const EngineOptions& options);

/// Of options whose zeros are resolved.
CacheOptions cache_options(const EngineOptions& options);

/// "f32", "int8 and int4" (K and V), or by layers.
std::string codec_words(const CacheSpec& spec);

/// As a user writes it: "int8", "int8,int4", "0-1:int4", "3:f32,bf16".
std::string words_of(const KvCodecs& kv);

}  // namespace stet::engine
