// Colours of plots. They are Okabe and Ito's (2008), which people with any kind of colour-blindness can tell apart,
// less the yellow, which white paper swallows; the page has a lighter set of the same hues for dark screens.
#pragma once

#include <array>
#include <string_view>

namespace stet::report {

struct Colour {
  std::string_view name;   // of the page's variable: --NAME
  std::string_view light;  // "#rrggbb", on white; also the name by which a plot's SVG is found to use it
  std::string_view dark;   // on near black
};

inline constexpr Colour kInk{"ink", "#1b1b1d", "#e6e6e3"}, kMuted{"muted", "#66666a", "#a3a39e"},
    kGrid{"grid", "#dededc", "#3a3d42"}, kPaper{"paper", "#ffffff", "#16181c"};

inline constexpr std::array<Colour, 7> kSeriesColours{{{"s0", "#0072b2", "#5cb2ea"},
                                                       {"s1", "#d55e00", "#ff8a45"},
                                                       {"s2", "#009e73", "#33cfa2"},
                                                       {"s3", "#cc79a7", "#e8a4ca"},
                                                       {"s4", "#e69f00", "#f4bd4a"},
                                                       {"s5", "#56b4e9", "#93d0f6"},
                                                       {"s6", "#4a4a4d", "#c9c9c5"}}};

}  // namespace stet::report
