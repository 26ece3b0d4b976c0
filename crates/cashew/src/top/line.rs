//! A row of the screen with its colours.

use crate::layout::{Tone, cut, wide};

use super::view::Palette;

#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    parts: Vec<(String, Tone)>,
    /// All of the row has the colours of text and background exchanged.
    pub(super) is_reversed: bool,
}

impl Line {
    pub(super) fn push(&mut self, text: String, tone: Tone) {
        self.parts.push((text, tone));
    }

    /// With the sequences that a terminal takes for its colours, cut off or filled up to the width.
    pub(super) fn drawn(&self, palette: Palette, width: usize) -> String {
        let reversed = if self.is_reversed { "\x1b[7m" } else { "" };
        let mut row = format!("\x1b[0m{reversed}");
        let mut left = width;
        for (text, tone) in &self.parts {
            let shown = cut(text, left);
            left -= wide(&shown).min(left);
            let style = palette.style(*tone);
            match style.is_empty() {
                true => row += &shown,
                false => row += &format!("\x1b[{style}m{shown}\x1b[0m{reversed}"),
            }
        }
        row + &" ".repeat(left) + "\x1b[0m"
    }

    /// Without them.
    #[cfg(test)]
    pub(super) fn text(&self, width: usize) -> String {
        let text: String = self.parts.iter().map(|(text, _)| text.as_str()).collect();
        let shown = cut(&text, width);
        let left = width - wide(&shown);
        shown + &" ".repeat(left)
    }
}

impl From<&str> for Line {
    fn from(text: &str) -> Self {
        Self { parts: vec![(text.to_owned(), Tone::Plain)], is_reversed: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_as_wide_as_the_screen_and_ends_its_colours() {
        let palette = Palette { has_colours: true, has_blocks: true };
        let mut line = Line::from("ab");
        line.push("界界".to_owned(), Tone::Bad);
        assert_eq!(line.drawn(palette, 8), "\x1b[0mab\x1b[1;31m界界\x1b[0m  \x1b[0m");
        line.is_reversed = true;
        let cut = "\x1b[0m\x1b[7mab\x1b[1;31m界~\x1b[0m\x1b[7m\x1b[0m";
        assert_eq!(line.drawn(palette, 5), cut);
        let plain = Palette { has_colours: false, ..palette };
        assert_eq!(line.drawn(plain, 6), "\x1b[0m\x1b[7mab\x1b[1m界界\x1b[0m\x1b[7m\x1b[0m");
        assert_eq!(line.text(8), "ab界界  ");
    }
}
