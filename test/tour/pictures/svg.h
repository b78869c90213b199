#pragma once
/// A drawing as SVG. It follows the reader's light or dark theme.

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace lockstep::test {

class Svg {
 public:
  Svg(double width, double height, std::string_view title)
      : text_(fmt::format(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:g} {1:g}\" width=\"{0:g}\" "
            "role=\"img\">\n<title>{2}</title>\n{3}",
            width, height, title, style)) {
    box(0, 0, width, height, "page");  // a page may be light where its reader prefers dark
  }

  /// `kind` is a class of the style below.
  void box(double x, double y, double width, double height, std::string_view kind) {
    text_ += fmt::format(
        "<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
        "rx=\"2\"/>\n",
        kind, x, y, width, height);
  }
  /// `anchor` is start, middle or end; y is that of the base line.
  void text(double x, double y, std::string_view what, std::string_view anchor = "start",
            std::string_view kind = "t") {
    text_ +=
        fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n",
                    kind, x, y, anchor, what);
  }
  void line(double x1, double y1, double x2, double y2, std::string_view kind = "l") {
    text_ += fmt::format(
        "<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", kind, x1,
        y1, x2, y2);
  }
  void arrow(double x1, double y1, double x2, double y2, std::string_view kind = "a") {
    line(x1, y1, x2, y2, kind);
  }
  std::string str() const { return text_ + "</svg>\n"; }

 private:
  static constexpr std::string_view style = R"(<defs>
<marker id="h" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
<path class="h" d="M0 0 L8 4 L0 8 z"/></marker>
</defs>
<style>
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.s { font-size: 11px; fill: #59636e; }
.b { font-weight: 600; }
.w { fill: #ffffff; }
.l { stroke: #9aa4af; stroke-width: 1; }
.a { stroke: #59636e; stroke-width: 1.3; marker-end: url(#h); }
.h { fill: #59636e; }
.page { fill: #ffffff; }
.part1 { fill: #dbe7f6; stroke: #9aa4af; }
.part2 { fill: #8db8ea; stroke: #9aa4af; }
.part3 { fill: #2f6fb5; stroke: #9aa4af; }
.part4 { fill: #173f6e; stroke: #9aa4af; }
.forward { fill: #9ec5f0; }
.backward { fill: #2f6fb5; }
.optimizer { fill: #8a63d2; }
.progress { fill: #d9822b; }
.wait { fill: #cc4b37; }
.bucket { fill: #3f9a5b; }
.queue { fill: #cfe8d6; }
.light { fill: #eef2f6; stroke: #9aa4af; }
@media (prefers-color-scheme: dark) {
.page { fill: #0d1117; }
text { fill: #e6edf3; }
.s { fill: #a4afba; }
.w { fill: #ffffff; }
.l, .a { stroke: #7d8894; }
.h { fill: #7d8894; }
.part1 { fill: #22364d; }
.part2 { fill: #2c5a8c; }
.wait { fill: #e2705f; }
.queue { fill: #24452f; }
.light { fill: #20262d; }
}
</style>
)";
  std::string text_;
};

}  // namespace lockstep::test
