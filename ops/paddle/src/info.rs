//! `.pdiparams.info`: a pickled dictionary that says which parameters are trained.
//!
//! Only what dictionaries of texts and booleans need is read, without recursion and in memory of the file's size: with
//! all of pickle, a few bytes describe values that fill any memory or stack.

use std::collections::{BTreeMap, HashMap};

use autobwd::{Error, ErrorKind, Result};

/// What the file says about a variable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ParameterInfo {
    pub(crate) stop_gradient: bool,
    /// Absent for variables that are no parameters.
    pub(crate) trainable: Option<bool>,
}

pub(crate) type ParameterInfos = BTreeMap<String, ParameterInfo>;

const STRUCTURED_NAME: &str = "structured_name";
const STOP_GRADIENT: &str = "stop_gradient";
const TRAINABLE: &str = "trainable";

/// A value on the stack. Dictionaries are numbered, since several values may be the same one.
#[derive(Clone, Copy)]
enum PickleValue<'a> {
    None,
    Bool(bool),
    Text(&'a [u8]),
    Dict(usize),
}

/// A pickle that is being read.
struct Unpickler<'a> {
    rest: &'a [u8],
    stack: Vec<PickleValue<'a>>,
    marks: Vec<usize>,
    memo: HashMap<u32, PickleValue<'a>>,
    dicts: Vec<Vec<(PickleValue<'a>, PickleValue<'a>)>>,
}

fn refuse(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Format, format!("not a dictionary of parameters: {what}"))
}

impl<'a> Unpickler<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(n).ok_or_else(|| refuse("it ends too early"))?;
        self.rest = rest;
        Ok(taken)
    }

    /// A number of so many bytes, at most four.
    fn number(&mut self, size: usize) -> Result<u32> {
        Ok(self.take(size)?.iter().rev().fold(0, |n, byte| n << 8 | u32::from(*byte)))
    }

    fn text(&mut self, size: usize) -> Result<()> {
        let length = self.number(size)?;
        let text = self.take(length as usize)?;
        self.stack.push(PickleValue::Text(text));
        Ok(())
    }

    fn pop(&mut self) -> Result<PickleValue<'a>> {
        self.stack.pop().ok_or_else(|| refuse("a value is missing"))
    }

    fn put(&mut self, id: u32) -> Result<()> {
        let value = *self.stack.last().ok_or_else(|| refuse("a value is missing"))?;
        self.memo.insert(id, value);
        Ok(())
    }

    fn get(&mut self, id: u32) -> Result<()> {
        let value = *self.memo.get(&id).ok_or_else(|| refuse(format_args!("there is no value {id}")))?;
        self.stack.push(value);
        Ok(())
    }

    /// Adds the values from `start` on the stack to the dictionary before them.
    fn set_items(&mut self, start: usize) -> Result<()> {
        let before = start.checked_sub(1).and_then(|at| self.stack.get(at));
        let (Some(PickleValue::Dict(dict)), true) = (before, self.stack.len() % 2 == start % 2) else {
            return Err(refuse("keys and values do not follow a dictionary"));
        };
        let (items, _) = self.stack[start..].as_chunks();
        self.dicts[*dict].extend(items.iter().map(|[key, value]| (*key, *value)));
        self.stack.truncate(start);
        Ok(())
    }

    /// Reads to the end and returns the number of the outermost dictionary.
    fn read(&mut self) -> Result<usize> {
        loop {
            match self.number(1)? as u8 {
                // The version, and lengths of frames.
                0x80 => _ = self.take(1)?,
                0x95 => _ = self.take(8)?,
                b'N' => self.stack.push(PickleValue::None),
                0x88 => self.stack.push(PickleValue::Bool(true)),
                0x89 => self.stack.push(PickleValue::Bool(false)),
                b'X' | b'T' => self.text(4)?,
                0x8c | b'U' => self.text(1)?,
                b'}' => {
                    self.stack.push(PickleValue::Dict(self.dicts.len()));
                    self.dicts.push(vec![]);
                }
                b'(' => self.marks.push(self.stack.len()),
                b'u' => {
                    let start = self.marks.pop().ok_or_else(|| refuse("a mark is missing"))?;
                    self.set_items(start)?;
                }
                b's' => self.set_items(self.stack.len().saturating_sub(2))?,
                b'q' => {
                    let id = self.number(1)?;
                    self.put(id)?;
                }
                b'r' => {
                    let id = self.number(4)?;
                    self.put(id)?;
                }
                0x94 => self.put(self.memo.len() as u32)?,
                b'h' => {
                    let id = self.number(1)?;
                    self.get(id)?;
                }
                b'j' => {
                    let id = self.number(4)?;
                    self.get(id)?;
                }
                b'.' => match self.pop()? {
                    PickleValue::Dict(dict) => return Ok(dict),
                    _ => return Err(refuse("another value")),
                },
                code => return Err(refuse(format_args!("instruction {code:#04x} is not supported"))),
            }
        }
    }

    /// What a dictionary says about a variable; the last value of a key counts.
    fn info(&self, dict: usize) -> Result<ParameterInfo> {
        let mut info = ParameterInfo { stop_gradient: false, trainable: None };
        for (key, value) in &self.dicts[dict] {
            let PickleValue::Text(key) = key else { return Err(refuse("a key is not a string")) };
            let flag = |name| match value {
                PickleValue::None => Ok(None),
                PickleValue::Bool(flag) => Ok(Some(*flag)),
                _ => Err(refuse(format_args!("`{name}` is not a bool"))),
            };
            if *key == STOP_GRADIENT.as_bytes() {
                info.stop_gradient = flag(STOP_GRADIENT)?.unwrap_or(false);
            } else if *key == TRAINABLE.as_bytes() {
                info.trainable = flag(TRAINABLE)?;
            }
        }
        Ok(info)
    }
}

/// Reads the bytes of a file.
///
/// # Errors
/// Other bytes.
pub(crate) fn read_infos(bytes: &[u8]) -> Result<ParameterInfos> {
    let mut read =
        Unpickler { rest: bytes, stack: vec![], marks: vec![], memo: HashMap::new(), dicts: vec![] };
    let outermost = read.read()?;
    let (mut infos, mut known, mut length) = (ParameterInfos::new(), HashMap::new(), 0_usize);
    for (name, value) in &read.dicts[outermost] {
        let (PickleValue::Text(name), PickleValue::Dict(dict)) = (name, value) else {
            return Err(refuse("a variable without a dictionary"));
        };
        // References repeat a long name in a few bytes.
        length += name.len();
        let name = std::str::from_utf8(name).ok().filter(|_| length <= bytes.len());
        let name = name.ok_or_else(|| refuse("a name is not a string, or occurs twice"))?;
        let info = match known.get(dict) {
            Some(info) => *info,
            None => *known.entry(*dict).or_insert(read.info(*dict)?),
        };
        infos.insert(name.into(), info);
    }
    Ok(infos)
}

/// The bytes of a file.
pub(crate) fn write_infos(infos: &ParameterInfos) -> Vec<u8> {
    fn text(file: &mut Vec<u8>, text: &str) {
        file.push(b'X');
        file.extend((text.len() as u32).to_le_bytes());
        file.extend(text.as_bytes());
    }
    let flag = |on: bool| if on { 0x88 } else { 0x89 };
    let mut file = b"\x80\x02}(".to_vec();
    for (name, info) in infos {
        text(&mut file, name);
        file.extend(b"}(");
        text(&mut file, STRUCTURED_NAME);
        text(&mut file, name);
        text(&mut file, STOP_GRADIENT);
        file.push(flag(info.stop_gradient));
        if let Some(trainable) = info.trainable {
            text(&mut file, TRAINABLE);
            file.push(flag(trainable));
        }
        file.push(b'u');
    }
    file.extend(b"u.");
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_entries_are_read() {
        let info = |stop_gradient, trainable| ParameterInfo { stop_gradient, trainable };
        let infos = [("w", info(false, Some(true))), ("é", info(true, Some(false))), ("", info(true, None))];
        let infos: ParameterInfos = infos.into_iter().map(|(name, info)| (name.into(), info)).collect();
        assert_eq!(read_infos(&write_infos(&infos)).unwrap(), infos);
        assert_eq!(read_infos(&write_infos(&ParameterInfos::new())).unwrap(), ParameterInfos::new());
    }

    #[test]
    fn references_are_the_same_value() {
        // {"a": d, "b": d} with d = {"trainable": True}, then d["trainable"] = False.
        let bytes = b"\x80\x02}(X\x01\0\0\0a}q\x01X\x09\0\0\0trainableq\x02\x88sU\x01bh\x01h\x02\x89su.";
        let infos = read_infos(bytes).unwrap();
        assert_eq!(infos.values().map(|info| info.trainable).collect::<Vec<_>>(), [Some(false); 2]);
    }

    #[test]
    fn hostile_files_are_errors() {
        let repeated =
            [&b"}(X\0\0\x01\0"[..], &[b'a'; 1 << 16], b"q\0}q\x01", &b"h\0h\x01".repeat(100), b"u."];
        for bytes in [
            // Nested values, copies of copies, and lists within themselves.
            [&b"]"[..], &b"\x85".repeat(1 << 20), b"."].concat(),
            [&b"}"[..], &b"2\x86".repeat(100), b"."].concat(),
            b"]q\0h\0a.".to_vec(),
            b"(".repeat(1 << 20),
            // Long texts and numbers.
            b"X\xff\xff\xff\xff".to_vec(),
            b"\x8d\xff\xff\xff\xff\xff\xff\xff\xff".to_vec(),
            b"\x8b\xff\xff\xff\x7f".to_vec(),
            // Missing values.
            b"u.".to_vec(),
            b"}(u".to_vec(),
            b"s.".to_vec(),
            b"}Ns.".to_vec(),
            b"}(Nu.".to_vec(),
            b"}(U\x01au.".to_vec(),
            b"(}NNu.".to_vec(),
            b"}q\0U\x01ah\x01s.".to_vec(),
            b"N.".to_vec(),
            repeated.concat(),
        ] {
            let e = read_infos(&bytes).unwrap_err().to_string();
            assert!(e.starts_with("not a dictionary of parameters: "), "{e}");
        }
    }

    #[test]
    fn dictionaries_may_be_within_themselves() {
        let nested = [&b"}"[..], &b"U\x01a}".repeat(1 << 16), &b"s".repeat(1 << 16), b"."].concat();
        assert_eq!(read_infos(&nested).unwrap().len(), 1);
        assert_eq!(read_infos(b"}q\0U\x01ah\0s.").unwrap().len(), 1);
    }
}
