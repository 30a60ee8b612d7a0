//! Structure-aware mutations of JSON texts, and mutations of bytes.

/// SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014).
pub struct Rng(pub u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// A random element of a list.
    pub fn pick<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        all.get(self.below(all.len()))
    }
}

/// A value within a JSON text.
#[derive(Clone, Copy, Debug)]
struct JsonNode {
    start: usize,
    end: usize,
    /// Start and end of the key of an object's member.
    key: Option<(usize, usize)>,
}

impl JsonNode {
    /// Its start, including its key.
    fn whole(&self) -> usize {
        self.key.map_or(self.start, |(start, _)| start)
    }
}

/// The values of a JSON text without spaces, as `Program::to_json` writes it, parents first; stops at the first syntax
/// error.
fn scan(text: &str) -> Vec<JsonNode> {
    let bytes = text.as_bytes();
    let (mut nodes, mut open): (Vec<JsonNode>, Vec<usize>) = (vec![], vec![]);
    let (mut at, mut key) = (0, None);
    while let Some(byte) = bytes.get(at) {
        let start = at;
        match byte {
            b'{' | b'[' => {
                open.push(nodes.len());
                nodes.push(JsonNode { start, end: start, key: key.take() });
                at += 1;
            }
            b'}' | b']' => {
                at += 1;
                let Some(closed) = open.pop() else { break };
                nodes[closed].end = at;
            }
            b',' | b':' => at += 1,
            b'"' => {
                at += 1;
                while bytes.get(at).is_some_and(|b| *b != b'"') {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at = (at + 1).min(bytes.len());
                match bytes.get(at) {
                    Some(b':') if key.is_none() => key = Some((start, at)),
                    _ => nodes.push(JsonNode { start, end: at, key: key.take() }),
                }
            }
            _ => {
                while bytes.get(at).is_some_and(|b| !b",]}:\"{[".contains(b)) {
                    at += 1;
                }
                nodes.push(JsonNode { start, end: at, key: key.take() });
                at = at.max(start + 1);
            }
        }
    }
    nodes.retain(|node| node.end > node.start && text.get(node.start..node.end).is_some());
    nodes
}

/// The number of integers among the numbers.
const WHOLE: usize = 22;
const NUMBERS: [&str; 27] = [
    "0",
    "1",
    "-1",
    "2",
    "-2",
    "3",
    "4",
    "5",
    "6",
    "7",
    "8",
    "64",
    "1000",
    "65536",
    "1048576",
    "2147483647",
    "-2147483648",
    "4294967296",
    "1099511627776",
    "4611686018427387904",
    "9223372036854775807",
    "-9223372036854775808",
    "0.5",
    "-0.0",
    "1e30",
    "1e-30",
    "1e308",
];
const TEXTS: [&str; 12] = [
    "\"\"",
    "\"@EMPTY@\"",
    "\"a b\"",
    "\"x@GRAD\"",
    "\"inf\"",
    "\"-inf\"",
    "\"NaN\"",
    "\"float64\"",
    "\"int64\"",
    "\"bool\"",
    "\"NHWC\"",
    "\"selected_rows\"",
];

/// A JSON text with one to four changes; `words` are other meaningful strings.
pub fn mutate(text: &str, words: &[&str], rng: &mut Rng) -> String {
    let mut text = text.to_string();
    loop {
        text = match rng.below(16) {
            0 => String::from_utf8_lossy(&mutate_bytes(text.as_bytes(), rng)).into_owned(),
            _ => change(&text, words, rng),
        };
        if rng.below(2) == 0 {
            return text;
        }
    }
}

fn change(text: &str, words: &[&str], rng: &mut Rng) -> String {
    let nodes = scan(text);
    let Some(node) = rng.pick(&nodes).copied() else { return text.into() };
    let of = |node: &JsonNode| &text[node.start..node.end];
    let key = |node: &JsonNode| node.key.and_then(|(start, end)| text.get(start..end));
    let replace = |from: usize, to: usize, with: &str| format!("{}{with}{}", &text[..from], &text[to..]);
    // Values in lists have the key of their parents.
    let group = |n: &JsonNode| {
        key(n).or_else(|| nodes.iter().find(|p| p.start < n.start && p.end >= n.end).and_then(key))
    };
    let like = |rng: &mut Rng| {
        let first = of(&node).as_bytes()[0];
        for _ in 0..20 {
            if let Some(other) = rng.pick(&nodes)
                && of(other).as_bytes()[0] == first
                && (key(other) == key(&node) || rng.below(8) == 0)
            {
                return of(other).to_string();
            }
        }
        of(&node).to_string()
    };
    let children = || {
        let at = nodes.iter().position(|n| n.start == node.start).unwrap_or(0);
        let inside = nodes[at + 1..].iter().take_while(|n| n.start < node.end);
        // The direct children only.
        let mut end = 0;
        inside
            .filter(|n| {
                n.start >= end && {
                    end = n.end;
                    true
                }
            })
            .copied()
            .collect::<Vec<_>>()
    };
    match of(&node).as_bytes()[0] {
        b'"' => {
            let word = match rng.below(8) {
                0 => rng.pick(&TEXTS).map_or(String::new(), ToString::to_string),
                1 | 2 if group(&node) == Some("\"type\"") => {
                    rng.pick(words).map_or(String::new(), |word| format!("\"{word}\""))
                }
                _ => like(rng),
            };
            replace(node.start, node.end, &word)
        }
        b't' => replace(node.start, node.end, "false"),
        b'f' => replace(node.start, node.end, "true"),
        b'[' | b'{' => {
            let children = children();
            let (open, close) = (&text[node.start..=node.start], &text[node.end - 1..node.end]);
            let part = |n: &JsonNode| &text[n.whole()..n.end];
            let mut parts: Vec<&str> = children.iter().map(part).collect();
            let (i, j) = (rng.below(parts.len()), rng.below(parts.len()));
            let other;
            // An object without a member is mostly rejected immediately.
            let kind = if open == "{" && rng.below(4) > 0 { 5 } else { rng.below(6) };
            match kind {
                0 if !parts.is_empty() => _ = parts.remove(i),
                1 if !parts.is_empty() => parts.insert(j, parts[i]),
                2 if !parts.is_empty() => parts.swap(i, j),
                3 if open == "[" => parts.clear(),
                4 if !parts.is_empty() => {
                    other = rng.pick(&nodes).map_or("", part);
                    parts[i] = other;
                }
                _ => return replace(node.start, node.end, &like(rng)),
            }
            replace(node.start, node.end, &format!("{open}{}{close}", parts.join(",")))
        }
        _ => {
            let old = of(&node).parse::<i64>().unwrap_or(0);
            let number = match rng.below(4) {
                0 => like(rng),
                1 => old.wrapping_add(1).to_string(),
                2 => old.wrapping_sub(1).to_string(),
                // Integers replace integers.
                _ if !of(&node).contains('.') => {
                    rng.pick(&NUMBERS[..WHOLE]).map_or(String::new(), ToString::to_string)
                }
                _ => rng.pick(&NUMBERS).map_or(String::new(), ToString::to_string),
            };
            replace(node.start, node.end, &number)
        }
    }
}

/// The header of a safetensors file with changes in one of its metadata, which are JSON in JSON; the header itself if
/// it has none.
pub fn mutate_metadata(header: &str, words: &[&str], rng: &mut Rng) -> String {
    let Ok(mut json) = serde_json::from_str::<serde_json::Value>(header) else { return header.into() };
    let metadata = json.get_mut("__metadata__").and_then(|metadata| metadata.as_object_mut());
    for text in metadata.into_iter().flat_map(|metadata| metadata.values_mut()) {
        if let serde_json::Value::String(text) = text {
            *text = mutate(text, words, rng);
        }
    }
    json.to_string()
}

/// Bytes with some changed, removed, doubled or moved.
pub fn mutate_bytes(bytes: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    loop {
        let (a, b) = (rng.below(bytes.len()), rng.below(bytes.len()));
        let (low, high) = (a.min(b), a.max(b).min(a.min(b) + 64));
        match rng.below(6) {
            _ if bytes.is_empty() => return bytes,
            0 => bytes[a] = rng.below(256) as u8,
            1 => bytes[a] ^= 1 << rng.below(8),
            2 => _ = bytes.drain(low..high),
            3 => {
                let part = bytes[low..high].to_vec();
                bytes.splice(a..a, part);
            }
            4 => bytes.swap(a, b),
            _ if rng.below(8) == 0 => bytes.truncate(a),
            _ => bytes[a] = b"0\"{}[]:,-9\xff\0"[rng.below(12)],
        }
        if rng.below(2) == 0 {
            return bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found() {
        let text = r#"{"a":[1,-2.5,"x\"y"],"b":{"c":true}}"#;
        let parts: Vec<&str> = scan(text).iter().map(|n| &text[n.start..n.end]).collect();
        assert_eq!(parts, [text, r#"[1,-2.5,"x\"y"]"#, "1", "-2.5", r#""x\"y""#, r#"{"c":true}"#, "true"]);
    }

    #[test]
    fn seed_says_what_becomes_of_a_text() {
        let text = r#"{"a":[1,2,3],"b":{"c":true,"type":"relu"}}"#;
        let all =
            |seed: u64| (0..200).map(|i| mutate(text, &["tanh"], &mut Rng(seed + i))).collect::<Vec<_>>();
        assert_eq!(all(0), all(0));
        assert_ne!(all(0), all(1000));
    }
}
