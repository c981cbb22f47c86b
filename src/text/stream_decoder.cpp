#include <utility>

#include "stet/tokenizer.hpp"
#include "text/utf8.hpp"

namespace stet {

std::string StreamDecoder::push(TokenId id) {
  held_ += tokenizer_->token_bytes(id);
  const std::string_view held = held_;
  std::size_t at = 0;
  while (at < held.size() && !text::is_cut_off(held.substr(at))) {
    const std::size_t length = text::sequence_length(held.substr(at));
    at += length == 0 ? 1 : length;
  }
  std::string piece = held_.substr(0, at);
  held_.erase(0, at);
  return piece;
}

std::string StreamDecoder::finish() {
  return std::exchange(held_, {});
}

}  // namespace stet
