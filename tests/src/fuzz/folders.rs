//! Folders of published models: their texts and sounds as one input, whose files are changed one at a time.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use autobwd_models::{Adapter, ChatMessage, FeatureExtractor, Pretrained, Tokenizer, transcription_prompt};

use super::{
    FuzzFinding, model_requests,
    mutate::{Rng, mutate, mutate_bytes},
};

/// The files of a folder that are read as texts.
const TEXTS: [&str; 8] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "preprocessor_config.json",
    "model.safetensors.index.json",
    "adapter_config.json",
];
/// The files with values, which are not changed.
const VALUES: [&str; 4] = [
    "model.safetensors",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "adapter_model.safetensors",
];
const SOUND: &str = "sound.wav";
/// A file without values of its own: its contents are the folder whose values are read.
const ORIGIN: &str = "origin";

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/models/tests/fixtures")
}

/// All folders in the tests of `autobwd-models`, with their adapters.
///
/// # Errors
/// Those of the file system.
pub fn folder_inputs() -> io::Result<Vec<Vec<u8>>> {
    let mut folders = vec![];
    for entry in fs::read_dir(fixtures())? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        folders.push(name.clone());
        folders.push(format!("{name}/bf16"));
    }
    folders.sort();
    let mut inputs = vec![];
    for origin in folders {
        let folder = fixtures().join(&origin);
        if !folder.join("config.json").exists() {
            continue;
        }
        let mut files = vec![(ORIGIN.to_string(), origin.into_bytes())];
        for name in TEXTS {
            let own = [folder.join(name), folder.join("adapter").join(name)];
            if let Some(path) = own.iter().find(|path| path.exists()) {
                files.push((name.into(), fs::read(path)?));
            }
        }
        files.push((SOUND.into(), sound()));
        inputs.push(pack(&files));
    }
    Ok(inputs)
}

/// A hundredth of a second of a sound, in WAV with 16 bits: <http://soundfile.sapp.org/doc/WaveFormat/>.
fn sound() -> Vec<u8> {
    let (rate, samples) = (16_000_u32, 160_u32);
    let mut wav = vec![];
    wav.extend(b"RIFF");
    wav.extend((36 + 2 * samples).to_le_bytes());
    wav.extend(b"WAVEfmt ");
    wav.extend(16_u32.to_le_bytes());
    [1_u16, 1].iter().for_each(|field| wav.extend(field.to_le_bytes()));
    [rate, 2 * rate].iter().for_each(|field| wav.extend(field.to_le_bytes()));
    [2_u16, 16].iter().for_each(|field| wav.extend(field.to_le_bytes()));
    wav.extend(b"data");
    wav.extend((2 * samples).to_le_bytes());
    (0..samples).for_each(|at| wav.extend(((at * 977) as i16).to_le_bytes()));
    wav
}

/// Files as one input: a line with a name and a length, and as many bytes.
fn pack(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut packed = vec![];
    for (name, bytes) in files {
        packed.extend(format!("{name} {}\n", bytes.len()).into_bytes());
        packed.extend(bytes);
    }
    packed
}

fn unpack(mut packed: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut files = vec![];
    while let Some(end) = packed.iter().position(|byte| *byte == b'\n') {
        let line = String::from_utf8_lossy(&packed[..end]).into_owned();
        let length = line.rsplit_once(' ').and_then(|(name, length)| Some((name, length.parse().ok()?)));
        let Some((name, length)) = length.filter(|(_, length)| *length < packed.len() - end) else {
            break;
        };
        files.push((name.to_string(), packed[end + 1..][..length].to_vec()));
        packed = &packed[end + 1 + length..];
    }
    files
}

/// A folder in which one file is changed or left out.
pub fn mutate_folder(packed: &[u8], words: &[&str], rng: &mut Rng) -> Vec<u8> {
    let mut files = unpack(packed);
    let at = rng.below(files.len().saturating_sub(1)) + 1;
    if rng.below(64) == 0 && at < files.len() {
        files.remove(at);
    }
    if let Some((name, bytes)) = files.get_mut(at) {
        let text = std::str::from_utf8(bytes).ok().filter(|_| name.ends_with(".json") && rng.below(8) > 0);
        *bytes = match text {
            Some(text) => mutate(text, words, rng).into_bytes(),
            None => mutate_bytes(bytes, rng),
        };
    }
    pack(&files)
}

/// Writes a folder, and makes every request about it: loads the model, with its adapter, encodes texts and conversations,
/// and reads the sound.
///
/// # Errors
/// A violated property; panics are left to the caller.
pub fn folder(path: &Path, packed: &[u8], rng: &mut Rng) -> Result<FuzzFinding, String> {
    write(path, &unpack(packed)).map_err(|e| format!("the folder cannot be written: {e}"))?;
    let mut found = FuzzFinding { outcome: "not loaded", ..FuzzFinding::default() };
    let pretrained = Pretrained::open(path);
    if let Err(e) = pretrained.generation_options() {
        found.note("generation_options", &e)?;
    }
    let tokenizer = Tokenizer::open(path);
    let spoken = FeatureExtractor::open(path).and_then(|extractor| extractor.read_wav(path.join(SOUND)));
    if let Err(e) = spoken {
        found.note("sound", &e)?;
    }
    match &tokenizer {
        Err(e) => found.note("tokenizer", e)?,
        Ok(tokenizer) => {
            let messages = [ChatMessage::new("user", "Hello"), ChatMessage::new("assistant", "café, 123!")];
            let rendered = tokenizer.render_chat(&messages, true);
            let outcomes = [
                tokenizer
                    .encode("Hello  café, 123!\n")
                    .and_then(|tokens| tokenizer.decode(&tokens))
                    .map(drop),
                rendered.and_then(|chat| tokenizer.encode_plain(&chat)).map(drop),
                transcription_prompt(&pretrained, tokenizer, Some("en")).map(drop),
            ];
            for e in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
                found.note("encoding", e)?;
            }
        }
    }
    let adapter = Adapter::read(path);
    match (pretrained.load(), adapter) {
        (Err(e), _) => found.note("load", &e).map(|()| found),
        (Ok(mut model), Ok(adapter)) => {
            if let Err(e) = adapter.attach(&mut model) {
                found.note("attach", &e)?;
            }
            model_requests(model, found, rng)
        }
        (Ok(model), Err(e)) => {
            found.note("adapter", &e)?;
            model_requests(model, found, rng)
        }
    }
}

/// Replaces the files of a folder.
fn write(path: &Path, files: &[(String, Vec<u8>)]) -> io::Result<()> {
    fs::create_dir_all(path)?;
    let given = |name: &str| files.iter().find(|(known, _)| known == name).map(|(_, bytes)| bytes);
    for name in TEXTS.into_iter().chain([SOUND]) {
        match given(name) {
            Some(bytes) => fs::write(path.join(name), bytes)?,
            None => remove(&path.join(name))?,
        }
    }
    let origin = String::from_utf8_lossy(given(ORIGIN).map_or(&[], Vec::as_slice)).into_owned();
    let origin = fixtures().join(origin);
    for name in VALUES {
        let own = [origin.join(name), origin.join("adapter").join(name)];
        match own.iter().find(|own| own.exists()) {
            Some(own) => fs::copy(own, path.join(name)).map(drop)?,
            None => remove(&path.join(name))?,
        }
    }
    Ok(())
}

/// Removes a file that may be missing.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}
