// What stored keys and values depend on, beside the tokens. Two caches whose identity, layers and tokens agree hold the
// same bytes; where they differ, this says in what.
#pragma once

#include <string>
#include <string_view>

#include "base/digest.hpp"
#include "stet/cache.hpp"
#include "stet/result.hpp"

namespace stet::kv {

struct Identity {
  base::Digest weights;  // every weight byte as held
  std::string config;    // canonical, `key=value` lines: all that shapes rows beside weights and layers
  int numerics = 0;      // version of docs/numerics.md
  friend bool operator==(const Identity&, const Identity&) = default;
};

/// Code::invalid_argument names what differs, `file` first: "FILE: rope_theta is 10000 in the file, 500000 in the
/// model". The numerics version is compared first, then the config, then the weights.
Result<void> check_same(const Identity& file, const Identity& model, std::string_view where);

/// Whether rows of `file` can be read into `cache`; the error names the first layer and field that differs. Codecs are
/// compared only with `codecs`.
Result<void> check_layers(const CacheSpec& file, const CacheSpec& cache, bool codecs, std::string_view where);

/// One digest of everything: who may share rows with whom. Different salts never share.
base::Digest key_of(const Identity& identity, const CacheSpec& layers, std::string_view salt);

}  // namespace stet::kv
