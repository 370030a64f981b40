//! Demangles names of D (D's specification, "Application Binary Interface", "Name Mangling"), in the form of binutils.

/// Maximum depth of types and names within each other. A reference back may lead to what contains it.
const MAX_DEPTH: usize = 64;
/// Maximum length of a demangled name, and of all of its parts together, in bytes: references back can multiply it.
const MAX_LENGTH: usize = 64 << 10;
/// The name of a program's own `main`.
const MAIN: &str = "_Dmain";

/// The name in its program's source, without the type of what a function returns. `None` if it is not one of D's.
pub(super) fn demangle(name: &str) -> Option<String> {
    if name == MAIN {
        return Some("D main".to_owned());
    }
    // A suffix of a compiler, such as `.cold`.
    let (mangled, suffix) = match name.find('.') {
        Some(at) => name.split_at(at),
        None => (name, ""),
    };
    let mut parser = Parser {
        text: mangled,
        at: 0,
        depth: 0,
        written: 0,
    };
    let found = parser.mangled()?;
    if parser.at < mangled.len() {
        return None;
    }
    Some(match suffix {
        "" => found,
        suffix => format!("{found} [clone {suffix}]"),
    })
}

struct Parser<'n> {
    text: &'n str,
    /// The position of what is next, in bytes.
    at: usize,
    depth: usize,
    /// The length of all parts so far.
    written: usize,
}

impl<'n> Parser<'n> {
    fn rest(&self) -> &'n [u8] {
        &self.text.as_bytes()[self.at..]
    }

    fn peek(&self) -> Option<u8> {
        self.rest().first().copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    /// Skips this if it is next.
    fn skip(&mut self, text: &str) -> bool {
        let is_next = self.rest().starts_with(text.as_bytes());
        self.at += if is_next { text.len() } else { 0 };
        is_next
    }

    /// Returns a part, unless the parts together are too long.
    fn part(&mut self, part: String) -> Option<String> {
        self.written += part.len();
        (self.written <= MAX_LENGTH).then_some(part)
    }

    /// Parses one level deeper.
    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        if self.depth == MAX_DEPTH {
            return None;
        }
        self.depth += 1;
        let found = parse(self);
        self.depth -= 1;
        found
    }

    fn number(&mut self) -> Option<usize> {
        let digits = self.rest().iter().take_while(|it| it.is_ascii_digit());
        let end = self.at + digits.count();
        let number = self.text.get(self.at..end)?.parse().ok()?;
        self.at = end;
        Some(number)
    }

    /// The position that a reference back leads to, which begins with `Q`: letters count in base 26, the last one is small.
    fn back(&mut self) -> Option<usize> {
        let start = self.at;
        self.skip("Q").then_some(())?;
        let mut distance: usize = 0;
        loop {
            let letter = self.next()?;
            let digit = usize::from(letter.to_ascii_lowercase().checked_sub(b'a')?);
            distance = distance.checked_mul(26)?.checked_add(digit)?;
            match letter {
                b'a'..=b'z' => break,
                b'A'..=b'Z' => {}
                _ => return None,
            }
        }
        (distance > 0).then_some(())?;
        start.checked_sub(distance)
    }

    /// Parses what a reference back leads to.
    fn at_back<T>(&mut self, parse: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let target = self.back()?;
        let after = std::mem::replace(&mut self.at, target);
        let found = self.nested(parse);
        self.at = after;
        found
    }

    /// `_D`, a name, and a type.
    fn mangled(&mut self) -> Option<String> {
        self.skip("_D").then_some(())?;
        let name = self.nested(Self::qualified)?;
        // The type of a variable, or what a function returns.
        if !(self.skip("Z") || self.at == self.text.len()) {
            // Of a variable that needs `this`.
            self.skip("M");
            self.type_()?;
        }
        Some(name)
    }

    /// Returns true if the next is a part of a qualified name.
    fn is_name(&self) -> bool {
        let rest = self.rest();
        if rest.first() == Some(&b'Q') {
            let mut copy = Parser { ..*self };
            let target = copy.back().and_then(|at| self.text.as_bytes().get(at));
            return target.is_some_and(u8::is_ascii_digit);
        }
        rest.first().is_some_and(u8::is_ascii_digit) || is_template(rest)
    }

    /// Names, and the parameters of functions among them.
    fn qualified(&mut self) -> Option<String> {
        let mut name = String::new();
        self.is_name().then_some(())?;
        while self.is_name() {
            while self.skip("0") {}
            let part = self.name()?;
            // What is local to a function has a name that only makes it unique.
            let number = part.strip_prefix("__S").unwrap_or_default();
            if number.is_empty() || !number.bytes().all(|it| it.is_ascii_digit()) {
                name += if name.is_empty() { "" } else { "." };
                name += &part;
            }
            let start = self.at;
            if let Some(parameters) = self.nested(Self::parameters_of_name) {
                name += &parameters;
            } else {
                self.at = start;
            }
        }
        self.part(name)
    }

    fn parameters_of_name(&mut self) -> Option<String> {
        let modifiers = match self.skip("M") {
            true => self.modifiers(),
            false => String::new(),
        };
        let function = self.function()?;
        Some(format!("({}){modifiers}", function.parameters))
    }

    fn modifiers(&mut self) -> String {
        let mut modifiers = String::new();
        loop {
            let all = [
                ("x", "const"),
                ("y", "immutable"),
                ("O", "shared"),
                ("Ng", "inout"),
            ];
            let Some((_, name)) = all.into_iter().find(|(letter, _)| self.skip(letter)) else {
                return modifiers;
            };
            modifiers += " ";
            modifiers += name;
        }
    }

    fn name(&mut self) -> Option<String> {
        if self.peek() == Some(b'Q') {
            return self.at_back(Self::name);
        }
        if is_template(self.rest()) {
            return self.nested(Self::template);
        }
        let length = self.number()?;
        if is_template(self.rest()) {
            // The older form has its length before it.
            let end = self.at.checked_add(length)?;
            let name = self.nested(Self::template)?;
            return (self.at == end).then_some(name);
        }
        let name = self.text.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        let name = match name {
            "__ctor" => "this",
            "__dtor" => "~this",
            name => name,
        };
        self.part(name.to_owned())
    }

    fn template(&mut self) -> Option<String> {
        // `__T` or `__U`.
        self.at += 3;
        let name = self.name()?;
        let mut arguments = Vec::new();
        while !self.skip("Z") {
            arguments.push(self.argument()?);
        }
        self.part(format!("{name}!({})", arguments.join(", ")))
    }

    fn argument(&mut self) -> Option<String> {
        self.skip("H");
        match self.next()? {
            b'T' => self.type_(),
            b'V' => {
                let start = self.at;
                let type_ = self.type_()?;
                let kind = match self.text.as_bytes()[start] {
                    b'Q' => {
                        let target = Parser { at: start, ..*self }.back()?;
                        *self.text.as_bytes().get(target)?
                    }
                    kind => kind,
                };
                self.nested(|it| it.value(&type_, kind))
            }
            b'S' if self.rest().starts_with(b"_D") => self.mangled(),
            b'S' => self.nested(Self::qualified),
            b'X' => {
                let length = self.number()?;
                let name = self.text.get(self.at..self.at.checked_add(length)?)?;
                self.at += length;
                self.part(name.to_owned())
            }
            _ => None,
        }
    }

    /// A value of this type, which begins with the letter `kind`.
    fn value(&mut self, type_: &str, kind: u8) -> Option<String> {
        let values = |it: &mut Self, number: usize| {
            let values = (0..number).map(|_| it.nested(|it| it.value("", 0)));
            Some(values.collect::<Option<Vec<_>>>()?.join(", "))
        };
        let value = match self.peek()? {
            b'n' => {
                self.at += 1;
                "null".to_owned()
            }
            b'N' => {
                self.at += 1;
                format!("-{}", self.integer(kind)?)
            }
            b'i' => {
                self.at += 1;
                self.integer(kind)?
            }
            b'0'..=b'9' => self.integer(kind)?,
            b'e' => {
                self.at += 1;
                self.real()?
            }
            b'c' => {
                self.at += 1;
                let real = self.real()?;
                self.skip("c").then_some(())?;
                format!("{real}+{}i", self.real()?)
            }
            b'a' | b'w' | b'd' => self.string()?,
            b'A' if kind == b'H' => {
                self.at += 1;
                let number = self.number()?;
                let mut pairs = Vec::new();
                for _ in 0..number {
                    let key = self.nested(|it| it.value("", 0))?;
                    let value = self.nested(|it| it.value("", 0))?;
                    pairs.push(self.part(format!("{key}:{value}"))?);
                }
                format!("[{}]", pairs.join(", "))
            }
            b'A' => {
                self.at += 1;
                let number = self.number()?;
                format!("[{}]", values(self, number)?)
            }
            b'S' => {
                self.at += 1;
                let number = self.number()?;
                format!("{type_}({})", values(self, number)?)
            }
            b'f' => {
                self.at += 1;
                self.mangled()?
            }
            _ => return None,
        };
        self.part(value)
    }

    fn integer(&mut self, kind: u8) -> Option<String> {
        let start = self.at;
        let number = self.number()?;
        let digits = &self.text[start..self.at];
        Some(match kind {
            b'b' => if number == 0 { "false" } else { "true" }.to_owned(),
            b'a' | b'u' | b'w' => {
                let (mark, width) = match kind {
                    b'a' => ("\\x", 2),
                    b'u' => ("\\u", 4),
                    _ => ("\\U", 8),
                };
                match u8::try_from(number)
                    .ok()
                    .filter(|it| (0x20..0x7f).contains(it))
                {
                    Some(byte) if kind == b'a' => format!("'{}'", char::from(byte)),
                    _ => format!("'{mark}{number:0width$x}'"),
                }
            }
            b'h' | b't' | b'k' => format!("{digits}u"),
            b'l' => format!("{digits}L"),
            b'm' => format!("{digits}uL"),
            _ => digits.to_owned(),
        })
    }

    /// A number in hexadecimal digits, with an exponent.
    fn real(&mut self) -> Option<String> {
        for (mark, name) in [("NAN", "NaN"), ("INF", "Inf"), ("NINF", "-Inf")] {
            if self.skip(mark) {
                return Some(name.to_owned());
            }
        }
        let sign = if self.skip("N") { "-" } else { "" };
        let first = char::from(self.next()?);
        let digits = |it: &mut Self, is: fn(&u8) -> bool| {
            let count = it.rest().iter().take_while(|byte| is(byte)).count();
            let digits = it.text.get(it.at..it.at + count);
            it.at += count;
            digits
        };
        let fraction = digits(self, u8::is_ascii_hexdigit)?;
        self.skip("P").then_some(())?;
        let exponent = if self.skip("N") { "-" } else { "" };
        let power = digits(self, u8::is_ascii_digit)?;
        first.is_ascii_hexdigit().then_some(())?;
        Some(format!("{sign}0x{first}.{fraction}p{exponent}{power}"))
    }

    fn string(&mut self) -> Option<String> {
        let width = self.next()?;
        let length = self.number()?;
        self.skip("_").then_some(())?;
        let mut text = String::from("\"");
        for _ in 0..length {
            let digits = self.text.get(self.at..self.at + 2)?;
            let byte = u8::from_str_radix(digits, 16).ok()?;
            self.at += 2;
            match byte {
                b'\t' => text += "\\t",
                b'\n' => text += "\\n",
                b'\r' => text += "\\r",
                0x0b => text += "\\v",
                0x0c => text += "\\f",
                0x20..0x7f => text.push(char::from(byte)),
                _ => text += &format!("\\x{digits}"),
            }
        }
        text += "\"";
        if width != b'a' {
            text.push(char::from(width));
        }
        Some(text)
    }

    fn type_(&mut self) -> Option<String> {
        let type_ = self.nested(Self::type_within)?;
        self.part(type_)
    }

    fn type_within(&mut self) -> Option<String> {
        let letter = self.peek()?;
        if letter == b'Q' {
            return self.at_back(Self::type_);
        }
        if matches!(letter, b'F' | b'U' | b'W' | b'V' | b'R' | b'Y') {
            return Some(self.function_type()? + "function");
        }
        self.at += 1;
        Some(match letter {
            b'x' => format!("const({})", self.type_()?),
            b'y' => format!("immutable({})", self.type_()?),
            b'O' => format!("shared({})", self.type_()?),
            b'N' => match self.next()? {
                b'g' => format!("inout({})", self.type_()?),
                b'h' => format!("__vector({})", self.type_()?),
                b'n' => "noreturn".to_owned(),
                _ => return None,
            },
            b'A' => self.type_()? + "[]",
            b'G' => {
                let number = self.number()?;
                format!("{}[{number}]", self.type_()?)
            }
            b'H' => {
                let key = self.type_()?;
                format!("{}[{key}]", self.type_()?)
            }
            b'P' => {
                let is_function = |byte| matches!(byte, b'F' | b'U' | b'W' | b'V' | b'R' | b'Y');
                let star = if self.peek().is_some_and(is_function) {
                    ""
                } else {
                    "*"
                };
                self.type_()? + star
            }
            b'C' | b'S' | b'E' | b'T' | b'I' => self.qualified()?,
            b'D' => {
                let modifiers = self.modifiers();
                let function = match self.peek()? {
                    b'Q' => self.at_back(Self::function_type)?,
                    _ => self.function_type()?,
                };
                format!("{function}delegate{modifiers}")
            }
            b'B' => self.tuple()?,
            b'z' => match self.next()? {
                b'i' => "cent".to_owned(),
                b'k' => "ucent".to_owned(),
                _ => return None,
            },
            letter => basic(letter)?.to_owned(),
        })
    }

    fn tuple(&mut self) -> Option<String> {
        let mut types = Vec::new();
        match self.peek()? {
            b'0'..=b'9' => {
                for _ in 0..self.number()? {
                    types.push(self.type_()?);
                }
            }
            _ => {
                while !self.skip("Z") {
                    types.push(self.type_()?);
                }
            }
        }
        Some(format!("tuple({})", types.join(", ")))
    }

    /// A function's type, up to the word that says what it is.
    fn function_type(&mut self) -> Option<String> {
        let Function {
            convention,
            attributes,
            parameters,
        } = self.function()?;
        let returned = self.type_()?;
        self.part(format!("{convention}{returned}({parameters}) {attributes}"))
    }

    fn function(&mut self) -> Option<Function> {
        let convention = match self.next()? {
            b'F' => "",
            b'U' => "extern(C) ",
            b'W' => "extern(Windows) ",
            b'V' => "extern(Pascal) ",
            b'R' => "extern(C++) ",
            b'Y' => "extern(Objective-C) ",
            _ => return None,
        };
        let mut attributes = String::new();
        while let Some((_, name)) = ATTRIBUTES.iter().find(|(mark, _)| self.skip(mark)) {
            attributes += name;
            attributes.push(' ');
        }
        let mut parameters = Vec::new();
        let end = loop {
            match self.peek()? {
                b'X' => break "...",
                b'Y' if parameters.is_empty() => break "...",
                b'Y' => break ", ...",
                b'Z' => break "",
                _ => parameters.push(self.parameter()?),
            }
        };
        self.at += 1;
        Some(Function {
            convention,
            attributes,
            parameters: self.part(parameters.join(", ") + end)?,
        })
    }

    fn parameter(&mut self) -> Option<String> {
        let mut parameter = String::new();
        while let Some((_, name)) = STORAGE.iter().find(|(mark, _)| self.skip(mark)) {
            parameter += name;
            parameter.push(' ');
        }
        Some(parameter + &self.type_()?)
    }
}

struct Function {
    convention: &'static str,
    attributes: String,
    parameters: String,
}

fn is_template(rest: &[u8]) -> bool {
    rest.starts_with(b"__T") || rest.starts_with(b"__U")
}

/// What a function's attributes are called.
const ATTRIBUTES: [(&str, &str); 10] = [
    ("Na", "pure"),
    ("Nb", "nothrow"),
    ("Nc", "ref"),
    ("Nd", "@property"),
    ("Ne", "@trusted"),
    ("Nf", "@safe"),
    ("Ni", "@nogc"),
    ("Nj", "return"),
    ("Nl", "scope"),
    ("Nm", "@live"),
];

/// How parameters are passed.
const STORAGE: [(&str, &str); 6] = [
    ("M", "scope"),
    ("Nk", "return"),
    ("I", "in"),
    ("J", "out"),
    ("K", "ref"),
    ("L", "lazy"),
];

fn basic(letter: u8) -> Option<&'static str> {
    Some(match letter {
        b'v' => "void",
        b'g' => "byte",
        b'h' => "ubyte",
        b's' => "short",
        b't' => "ushort",
        b'i' => "int",
        b'k' => "uint",
        b'l' => "long",
        b'm' => "ulong",
        b'f' => "float",
        b'd' => "double",
        b'e' => "real",
        b'o' => "ifloat",
        b'p' => "idouble",
        b'j' => "ireal",
        b'q' => "cfloat",
        b'r' => "cdouble",
        b'c' => "creal",
        b'b' => "bool",
        b'a' => "char",
        b'u' => "wchar",
        b'w' => "dchar",
        b'n' => "typeof(null)",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What gdc 12 and ldc 1.30 call the functions of a program, and what c++filt of binutils 2.40 makes of that.
    #[test]
    fn names_are_those_of_binutils() {
        let names = [
            ("_D4shop4cart4Shop4sellMFiZl", "shop.cart.Shop.sell(int)"),
            (
                "_D4shop4cart4Shop4sizeMxFNaNbNdNiNfZi",
                "shop.cart.Shop.size() const",
            ),
            (
                "_D4shop4cart4Shop5main2FHAyaQdDFKlJiLbZiZv",
                "shop.cart.Shop.main2(immutable(char)[][immutable(char)[]], int(ref long, out int, lazy bool) delegate)",
            ),
            (
                "_D4shop4cart4Shop6__ctorMFiZCQBbQzQw",
                "shop.cart.Shop.this(int)",
            ),
            ("_D4shop4cart4Shop6__dtorMFZv", "shop.cart.Shop.~this()"),
            (
                "_D4shop4cart4mainFAAyaZ__T9__lambda4TQsZQoFNaNbNiNfQBgZm",
                "shop.cart.main(immutable(char)[][]).__lambda4!(immutable(char)[]).__lambda4(immutable(char)[])",
            ),
            (
                "_D4shop4cart4mainFAAyaZ__T9__lambda5TmZQnFNaNbNiNfmZb",
                "shop.cart.main(immutable(char)[][]).__lambda5!(ulong).__lambda5(ulong)",
            ),
            (
                "_D4shop4cart4pickFEQrQo5ColorMPFiZvewughstkmfdcZi",
                "shop.cart.pick(shop.cart.Color, scope void(int) function, real, dchar, wchar, byte, ubyte, short, ushort, uint, ulong, float, double, creal)",
            ),
            ("_D4shop4cart4plusFiZi", "shop.cart.plus(int)"),
            (
                "_D4shop4cart6mappedFAyiG4iPOiZAl",
                "shop.cart.mapped(immutable(int)[], int[4], shared(int)*)",
            ),
            ("_D4shop4cart8variadicFAiXi", "shop.cart.variadic(int[]...)"),
            (
                "_D4shop4cart__T4ItemTiZQi3addMFNaNbNiNfiAxaZi",
                "shop.cart.Item!(int).Item.add(int, const(char)[])",
            ),
            (
                "_D4shop4cart__T5templVAyaa5_68656c6c6fVii5S_DQBrQBp4plusFiZiZQBuFNaNbNiNfZv",
                "shop.cart.templ!(\"hello\", 5, shop.cart.plus(int)).templ()",
            ),
            (
                "_D4shop4cart__T5twiceS_DQwQt4plusFiZiTiZQzQj",
                "shop.cart.twice!(shop.cart.plus(int), int).twice",
            ),
            ("_Dmain", "D main"),
            // Binutils does not know `Nk` before `M`, and no modifiers of a function that another one is in.
            (
                "_D2rt8monitor_7monitorFNaNbNcNdNiNkMC6ObjectZOPSQBuQBu7Monitor",
                "rt.monitor_.monitor(return scope Object)",
            ),
            ("_D1f4bitsMxFNbNdZ9__lambda3Mi", "f.bits() const.__lambda3"),
            (
                "_D3std4file6removeFAyaZv.part.0",
                "std.file.remove(immutable(char)[]) [clone .part.0]",
            ),
        ];
        for (name, expected) in names {
            assert_eq!(demangle(name).as_deref(), Some(expected), "{name}");
        }
    }

    #[test]
    fn other_names_are_none_of_d() {
        let names = [
            "_D",
            "_D4",
            "_D0",
            "_Dynamic",
            "_D3abcQz",
            "_D3abcFiZi9",
            "_D3abcFQaZi",
            "main",
        ];
        for name in names {
            assert_eq!(demangle(name), None, "{name}");
        }
        let long = format!("_D{}a", "9".repeat(100));
        assert_eq!(demangle(&long), None);
    }

    #[test]
    fn wherever_a_name_is_cut_or_changed_there_is_an_answer() {
        let whole = "_D4shop4cart__T5templVAyaa5_68656c6c6fVii5S_DQBrQBp4plusFiZiZQBuFNaNbNiNfZv";
        assert!(demangle(whole).is_some());
        for length in 0..whole.len() {
            let _ = demangle(&whole[..length]);
            for other in ["Q", "é", "_", "9", "Z", "A"] {
                let _ = demangle(&format!(
                    "{}{other}{}",
                    &whole[..length],
                    &whole[length + 1..]
                ));
            }
        }
    }

    /// Each parameter is twice what was before it: a kilobyte would be demangled to more than any memory has.
    #[test]
    fn names_are_as_long_and_as_nested_as_the_limits_allow() {
        let mut name = String::from("_D1fF");
        name += "HiHiiZ";
        name.truncate(name.len() - 1);
        let mut last = "_D1fF".len();
        for _ in 0..60 {
            let start = name.len();
            name.push('H');
            for _ in 0..2 {
                let distance = name.len() - last;
                name += "Q";
                let (high, low) = (distance / 26, distance % 26);
                if high > 0 {
                    name.push(char::from(b'A' + high as u8));
                }
                name.push(char::from(b'a' + low as u8));
            }
            last = start;
        }
        assert_eq!(demangle(&format!("{name}Zv")), None);
        let pointers = |depth| format!("_D1fF{}iZv", "P".repeat(depth));
        let expected = format!("f(int{})", "*".repeat(50));
        assert_eq!(demangle(&pointers(50)), Some(expected));
        assert_eq!(demangle(&pointers(1 << 20)), None);
    }
}
