// Stop strings in text that arrives in pieces.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace stet::sample {

/// Finds the first end of a stop string, wherever the borders of the pieces lie. Of several that end there the longest
/// counts. So the result is that of reading byte by byte and stopping at once: of "ab" and "abcd" the former always
/// wins, of "bc" and "abc" the latter.
class StopMatcher {
 public:
  /// Empty stop strings are ignored. Without any, all text passes at once.
  explicit StopMatcher(std::vector<std::string> stops);

  struct Out {
    std::string text;      // became certain: no stop string can begin in it
    bool stopped = false;  // a stop string ended; `text` is what came before it, and the rest is dropped
  };

  /// Takes time in proportion to the piece's bytes x the number of stop strings. After a stop every call gives {"",
  /// true}.
  Out push(std::string_view piece);

  /// What was held back because a stop string could have begun in it; the end of the text. Empty after a stop.
  std::string finish();

 private:
  // One Knuth-Morris-Pratt automaton a stop string.
  struct Automaton {
    std::string stop;
    std::vector<std::size_t>
        border;               // border[n]: the longest proper prefix of the first n bytes that is also their suffix
    std::size_t matched = 0;  // bytes of `stop` that end the text so far
  };
  static std::size_t step(const Automaton& automaton, char byte) noexcept;

  std::vector<Automaton> automata_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace stet::sample
