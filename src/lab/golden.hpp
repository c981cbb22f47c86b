// A model against published ids, texts and logits: does this folder hold the weights that the world knows?
#pragma once

#include <string>
#include <vector>

#include "stet/engine.hpp"

namespace stet::lab {

struct GoldenCheck {
  std::string name;  // "greedy: The dog"
  bool passed = false, skipped = false;
  std::string detail;  // what was expected and seen, or why it was skipped
};

/// `text` is JSON as in the published collection (docs/json.md): "greedy" entries with prompt_ids and
/// continuation_ids_by_encoding_the_text, "logits" entries with ids and expected values. `name` names it in errors.
/// Code::corrupt when it is no such file; kinds of entries that Stet does not do are skipped by name.
Result<std::vector<GoldenCheck>> check_golden(Engine& engine, const std::string& text, const std::string& name,
                                              const std::function<bool()>& keep_going);

}  // namespace stet::lab
