//! The page's colours (`colours.js` of `otelctx-page`, which says why they are these).

/// Hue, saturation and lightness, in light and in dark.
type Colour = ([u16; 3], [u16; 3]);

/// Languages by their number, with their names.
pub(super) const LANGUAGES: [(&str, Colour); 7] = [
    ("Python", ([221, 95, 78], [212, 53, 26])),
    ("JavaScript", ([47, 79, 66], [41, 57, 18])),
    ("Java", ([14, 90, 66], [8, 54, 39])),
    ("native", ([159, 35, 83], [165, 18, 33])),
    ("kernel", ([267, 56, 66], [277, 35, 43])),
    ("other", ([330, 62, 82], [330, 30, 32])),
    ("waiting", ([12, 31, 54], [12, 31, 24])),
];
pub(super) const PLUMBING: Colour = ([219, 4, 66], [225, 6, 18]);
/// Number of shades of each language.
const SHADES: u16 = 4;

/// Other colours, in light and in dark: of `THEME`.
const THEME: [(&str, &str, &str, &str); 8] = [
    ("", "color", "#14161a", "#f4f5f7"),
    ("", "background", "#ffffff", "#15171b"),
    ("text", "fill", "#14161a", "#f4f5f7"),
    (".back", "fill", "#ffffff", "#15171b"),
    (".all rect", "fill", "#e3e6eb", "#343840"),
    (".service rect", "fill", "#2b3648", "#c9d2e0"),
    (".value rect", "fill", "#566378", "#8494ad"),
    (".joined rect", "fill", "#e9ebef", "#2a2d33"),
];
const THEME_OF_TEXT: [(&str, &str, &str, &str); 2] = [
    (".service text", "fill", "#ffffff", "#14161a"),
    (".value text", "fill", "#ffffff", "#101216"),
];

/// Returns the style sheet of all classes.
pub(super) fn style() -> String {
    let sheet = |dark: bool| {
        let mut sheet = String::new();
        for (selector, property, light, other) in THEME.iter().chain(&THEME_OF_TEXT) {
            let value = if dark { other } else { light };
            let selector = if selector.is_empty() { "svg" } else { selector };
            sheet += &format!("{selector}{{{property}:{value}}}\n");
        }
        for (language, (_, colour)) in LANGUAGES.iter().enumerate() {
            for shade in 0..SHADES {
                let fill = hsl(*colour, shade, dark);
                sheet += &format!(".l{language}{shade} rect{{fill:{fill}}}\n");
            }
        }
        sheet + &format!(".plumbing rect{{fill:{}}}\n", hsl(PLUMBING, 1, dark))
    };
    let (light, dark) = (sheet(false), sheet(true));
    format!("{light}@media (prefers-color-scheme: dark){{\n{dark}}}\n")
}

fn hsl((light, dark): Colour, shade: u16, is_dark: bool) -> String {
    let [hue, saturation, lightness] = if is_dark { dark } else { light };
    format!("hsl({hue},{saturation}%,{}%)", lightness + shade * 2)
}

/// Returns which of its language's shades a function has (`shadeOf`): the same for each function of
/// a file, in every graph.
pub(super) fn shade_of(text: &str) -> i32 {
    let hash = text.encode_utf16().fold(0_i32, |hash, unit| {
        hash.wrapping_mul(31).wrapping_add(i32::from(unit))
    });
    ((hash as u32 >> 7) & 3) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page has the same colours.
    #[test]
    fn colours_are_those_of_the_page() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../page/page/colours.js");
        let page = std::fs::read_to_string(path).unwrap();
        let table = |name: &str| -> Vec<[u16; 3]> {
            let start = page.find(&format!("const {name} = [")).unwrap();
            let rows = page[start..].split(";").next().unwrap();
            let rows = rows.lines().filter_map(|line| {
                let row = line.trim().strip_prefix('[')?.strip_suffix("],")?;
                let numbers = row.split(", ").map(|it| it.parse().unwrap());
                numbers.collect::<Vec<u16>>().try_into().ok()
            });
            rows.collect()
        };
        let all = LANGUAGES.iter().map(|(_, colour)| *colour);
        let all: Vec<Colour> = all.chain([PLUMBING]).collect();
        let light: Vec<_> = all.iter().map(|(light, _)| *light).collect();
        let dark: Vec<_> = all.iter().map(|(_, dark)| *dark).collect();
        assert_eq!(table("LIGHT"), light);
        assert_eq!(table("DARK"), dark);
        for (_, _, light, dark) in THEME.iter().chain(&THEME_OF_TEXT) {
            let both = format!("['{light}', '{dark}']");
            assert!(page.contains(&both), "{both}");
        }
    }

    /// The expected values are what `shadeOf` returns.
    #[test]
    fn shades_are_those_of_the_page() {
        for (text, shade) in [("", 0), ("shop/cart.py", 2), ("/src/日本/😀.rs", 3)] {
            assert_eq!(shade_of(text), shade, "{text}");
        }
    }
}
