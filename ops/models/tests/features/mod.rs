//! Fine-tuning on images and sounds, and on texts that are generated from texts.

use std::path::Path;

use autobwd::{Executor, Result, Tensor, tensor::load_tensors};
use autobwd_models::{
    Example, ExampleFormat, FeatureExtractor, Features, FineTuning, Generator, ImageProcessor, Lora,
    Pretrained, Tokenizer, read_images, read_sounds, transcription_prompt,
};
use hound::{SampleFormat, WavSpec, WavWriter};
use image::{Rgb, RgbImage};
use tempfile::tempdir;

use crate::{assert_near, expected_losses, finish, folder, like_fixture, losses};

/// The batch of the training steps of a fixture: what its rows read, and their labels.
fn batch(family: &str) -> Result<Vec<Example>> {
    let all = load_tensors(folder(family).join("expected.safetensors"))?;
    let find = |name: &str| all.iter().find(|(known, _)| known == name).map(|(_, value)| value);
    let rows = |value: &Tensor| -> Result<Vec<Vec<i64>>> {
        let numbers = value.slice::<i64>()?;
        Ok(numbers.chunks(numbers.len() / value.dims()[0]).map(<[i64]>::to_vec).collect())
    };
    let labels = rows(find("train.labels").expect("labels"))?;
    if let Some(ids) = find("train.input_ids") {
        let masks = rows(find("train.attention_mask").expect("a mask"))?;
        let example = |((mut ids, mask), labels): ((Vec<i64>, Vec<i64>), Vec<i64>)| {
            ids.truncate(mask.iter().filter(|is_token| **is_token != 0).count());
            Example::text(ids, labels)
        };
        return Ok(rows(ids)?.into_iter().zip(masks).zip(labels).map(example).collect());
    }
    let features = ["train.pixel_values", "train.input_features"].iter().find_map(|name| find(name));
    let features = features.expect("features");
    let dims = &features.dims()[1..];
    let of_rows = features.slice::<f32>()?.chunks(dims.iter().product());
    let example = |(row, labels): (&[f32], Vec<i64>)| {
        let features = Some(Features::Tensor(Tensor::from_vec(dims, row.to_vec())?));
        Ok(Example { features, labels, ..Example::default() })
    };
    of_rows.zip(labels).map(example).collect()
}

#[test]
fn losses_are_those_of_transformers() -> Result<()> {
    for family in ["t5", "whisper", "vit"] {
        let examples = batch(family)?;
        let whole = losses(&like_fixture(), family, &examples)?;
        // The steps of the fixtures also decay scales of normalisations and biases.
        assert_near(&whole, &expected_losses(family), 3e-4, family);
        assert_near(&whole[..2], &expected_losses(family)[..2], 1e-4, family);
        let parts = FineTuning { batch: 1, micro_batches: 2, ..like_fixture() };
        assert_near(&losses(&parts, family, &examples)?, &whole, 1e-5, family);
        // Adapters learn, too.
        let lora = Some(Lora::new(4, &["all-linear"]));
        let adapted = losses(&FineTuning { lora, ..like_fixture() }, family, &examples)?;
        assert!(adapted[0] > adapted[4] && adapted[0] == whole[0], "{family}: {adapted:?}");
    }
    Ok(())
}

/// An image of one colour, of 32 x 32 pixels.
fn save_image(path: &Path, colour: [u8; 3]) {
    RgbImage::from_pixel(32, 32, Rgb(colour)).save(path).expect("an image");
}

/// The pixels that `Image.resize((16, 16), 2)` of Pillow 13 makes of an image, one row of them.
const RESIZED: [u8; 48] = [
    111, 120, 107, 180, 119, 113, 152, 142, 136, 107, 160, 110, 129, 124, 168, 148, 131, 131, 111, 162, 104,
    119, 119, 165, 150, 92, 145, 139, 151, 106, 86, 121, 134, 139, 93, 116, 109, 142, 114, 81, 123, 98, 130,
    102, 148, 107, 71, 117,
];

#[test]
fn images_are_resized_as_by_pillow() -> Result<()> {
    let folder = tempdir().expect("a folder");
    let path = folder.path().join("image.png");
    let sample = |x: u32, y: u32, c: u32| ((x * 37 + y * 91 + c * 53 + x * y * 7) % 256) as u8;
    let image = RgbImage::from_fn(24, 20, |x, y| Rgb([0, 1, 2].map(|c| sample(x, y, c))));
    image.save(&path).expect("an image");
    let pixels = ImageProcessor::open(crate::folder("vit"))?.pixel_values(&path)?;
    let pixels = pixels.slice::<f32>()?;
    for (at, expected) in RESIZED.iter().enumerate() {
        let found = (pixels[at % 3 * 256 + 7 * 16 + at / 3] + 1.0) * 127.5;
        // Pillow rounds between both directions.
        assert!((found - f32::from(*expected)).abs() < 1.01, "{at}: {found} is not {expected}");
    }
    Ok(())
}

#[test]
fn images_are_classified() -> Result<()> {
    let data = tempdir().expect("a folder");
    let lines = data.path().join("data.jsonl");
    let mut text = String::new();
    for (i, (name, colour)) in
        [("red", [250, 10, 20]), ("blue", [10, 20, 250])].iter().cycle().take(8).enumerate()
    {
        let shade = colour.map(|sample| sample - i as u8);
        save_image(&data.path().join(format!("{i}.png")), shade);
        text += &format!("{{\"file\": \"{i}.png\", \"colour\": \"{name}\"}}\n");
    }
    std::fs::write(&lines, text).expect("a file");
    let processor = ImageProcessor::open(folder("vit"))?;
    let pixels = processor.pixel_values(data.path().join("0.png"))?;
    assert_eq!(pixels.dims(), [1, 3, 16, 16]);
    for (plane, sample) in pixels.slice::<f32>()?.chunks(256).zip([250.0, 10.0, 20.0]) {
        plane.iter().for_each(|pixel| assert!((pixel - (sample / 127.5 - 1.0)).abs() < 1e-6, "{pixel}"));
    }

    let names = ["blue", "red"].map(String::from);
    let pretrained = Pretrained::open(folder("vit")).classes(&names);
    let examples = read_images(&lines, ["file", "colour"], &names, &processor)?;
    let tuning = FineTuning { learning_rate: 1e-2, batch: 4, epochs: 8, ..FineTuning::default() };
    let mut run = tuning.prepare(&pretrained, examples.clone(), examples.clone())?;
    assert!(run.summary().to_string().contains("examples    8; 8 labels are counted"), "{}", run.summary());
    let reports = finish(&mut run)?;
    assert!(run.evaluate()?.is_some_and(|loss| loss < 0.1), "{reports:?}");
    // A run that goes on reads the same images.
    let checkpoint = data.path().join("checkpoint.safetensors");
    let mut first = tuning.prepare(&pretrained, examples.clone(), vec![])?;
    first.step()?;
    first.save_checkpoint(&checkpoint, &[])?;
    let mut second = tuning.prepare(&pretrained, examples.clone(), vec![])?;
    second.resume(&checkpoint)?;
    assert_eq!(finish(&mut second)?, reports[1..]);
    let other = tuning.prepare(&pretrained, examples[1..].to_vec(), vec![]);
    assert!(other?.resume(&checkpoint).is_err());

    // An image that is gone by then.
    let mut run = tuning.prepare(&pretrained, examples, vec![])?;
    std::fs::remove_file(data.path().join("3.png")).expect("a file");
    assert!(finish(&mut run).unwrap_err().to_string().contains("3.png"));
    std::fs::write(data.path().join("4.png"), "no image").expect("a file");
    let error = read_images(&lines, ["file", "colour"], &names, &processor).unwrap_err().to_string();
    for part in ["line 4: cannot read", "line 5: cannot decode the image"] {
        assert!(error.contains(part), "{error}");
    }
    Ok(())
}

/// Saves a sound of so many samples a second.
fn save_sound(path: &Path, samples: &[i16], sample_rate: u32) {
    let spec = WavSpec { channels: 2, sample_rate, bits_per_sample: 16, sample_format: SampleFormat::Int };
    let mut writer = WavWriter::create(path, spec).expect("a file");
    for sample in samples.iter().flat_map(|sample| [*sample; 2]) {
        writer.write_sample(sample).expect("a sample");
    }
    writer.finalize().expect("a file");
}

/// A tone of this frequency in Hz, of so many samples.
fn tone(hertz: f64, count: u32) -> Vec<i16> {
    let angle = |n: u32| std::f64::consts::TAU * hertz * f64::from(n) / 16_000.0;
    (0..count).map(|n| (20_000.0 * libm::sin(angle(n))) as i16).collect()
}

#[test]
fn sounds_are_transcribed() -> Result<()> {
    let whisper = folder("whisper");
    let (pretrained, tokenizer) = (Pretrained::open(&whisper), Tokenizer::open(&whisper)?);
    let extractor = FeatureExtractor::open(&whisper)?;
    let data = tempdir().expect("a folder");
    let lines = data.path().join("data.jsonl");
    let texts = [(300.0, "the cat"), (2500.0, "a dog")];
    let mut file = String::new();
    for (i, (hertz, text)) in texts.iter().enumerate() {
        save_sound(&data.path().join(format!("{i}.wav")), &tone(*hertz, 9000), 16_000);
        file += &format!("{{\"sound\": \"{i}.wav\", \"text\": \"{text}\"}}\n");
    }
    std::fs::write(&lines, file).expect("a file");
    let samples: Vec<f32> = tone(300.0, 9000).iter().map(|sample| f32::from(*sample) / 32_768.0).collect();
    let features = extractor.read_wav(data.path().join("0.wav"))?;
    assert_eq!(features, extractor.log_mel_spectrogram(&samples)?);

    let prompt = transcription_prompt(&pretrained, &tokenizer, Some("en"))?;
    let examples = read_sounds(&lines, ["sound", "text"], &prompt, (&tokenizer, &extractor))?;
    assert_eq!(examples[0].labels[..3], prompt[1..]);
    let tuning = FineTuning { learning_rate: 1e-2, batch: 2, epochs: 40, ..FineTuning::default() };
    let mut run = tuning.prepare(&pretrained, examples, vec![])?;
    finish(&mut run)?;
    let result = tempdir().expect("a folder");
    run.save(result.path())?;
    let tuned = Pretrained::open(result.path());
    let (mut generator, options) = (Generator::new(&tuned, 1, 24)?, tuned.generation_options()?);
    for (i, (_, text)) in texts.iter().enumerate() {
        let features = extractor.read_wav(data.path().join(format!("{i}.wav")))?;
        let sources = (&features, &[&prompt[..]][..]);
        let mut executor = Executor::with_threads(1);
        let found =
            generator.transcribe_texts(&mut executor, &tokenizer, sources, &options, &[], |_, _| true)?;
        assert_eq!(found[0].text, *text);
    }

    for (name, samples, rate, part) in [
        ("fast.wav", 10, 44_100, "its sampling rate is 44100 Hz, not 16000: resample it"),
        ("long.wav", 17_000, 16_000, "1.06 s are more than the 1 s that the model reads"),
    ] {
        save_sound(&data.path().join(name), &tone(300.0, samples), rate);
        let error = extractor.read_wav(data.path().join(name)).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let error = extractor.read_wav(&lines).unwrap_err().to_string();
    assert!(error.contains("no sound of WAV"), "{error}");
    let error = transcription_prompt(&pretrained, &tokenizer, Some("xx")).unwrap_err().to_string();
    assert_eq!(error, "the tokenizer has no token `<|xx|>`");
    Ok(())
}

#[test]
fn targets_are_read_from_lines() -> Result<()> {
    let tokenizer = Tokenizer::open(folder("t5"))?;
    let line = r#"{"prompt": "the cat", "completion": "sat on"}"#;
    let example = ExampleFormat::SourceAndTarget.example(line, &tokenizer)?;
    assert_eq!(example.tokens, tokenizer.encode("the cat")?);
    assert_eq!(example.labels.last().copied(), tokenizer.eos_token_id());
    let tuning = FineTuning { learning_rate: 1e-2, batch: 1, epochs: 30, ..FineTuning::default() };
    let mut run = tuning.prepare(&Pretrained::open(folder("t5")), vec![example.clone()], vec![])?;
    let summary = run.summary().to_string();
    assert!(summary.contains(&format!("with {} tokens to generate", example.labels.len())), "{summary}");
    finish(&mut run)?;
    let result = tempdir().expect("a folder");
    run.save(result.path())?;
    let tuned = Pretrained::open(result.path());
    let mut generator = Generator::new(&tuned, 1, 24)?;
    let texts = generator.generate_texts(
        &mut Executor::with_threads(1),
        &tokenizer,
        &[example.tokens],
        &tuned.generation_options()?,
        &[],
        |_, _| true,
    )?;
    assert_eq!(texts[0].text, "sat on");
    Ok(())
}

#[test]
fn examples_of_another_kind_are_refused() -> Result<()> {
    let error = |family: &str, examples: Vec<Example>| {
        let prepared = like_fixture().prepare(&Pretrained::open(folder(family)), examples, vec![]);
        prepared.unwrap_err().to_string()
    };
    let text = || Example::text(vec![5, 6], vec![5, 6]);
    let image = |sides: [usize; 3]| -> Result<Example> {
        let features = Some(Features::Tensor(Tensor::from_vec(sides, vec![0.0; sides.iter().product()])?));
        Ok(Example { features, labels: vec![1], ..Example::default() })
    };
    for (found, part) in [
        (error("vit", vec![text()]), "the model reads `pixel_values`, and the example has no features"),
        (error("vit", vec![image([3, 8, 8])?]), "`pixel_values` are [3, 16, 16], not [3, 8, 8]"),
        (error("whisper", vec![image([3, 16, 16])?]), "`input_features` are [16, 100]"),
        (error("bert", vec![image([3, 16, 16])?]), "the model reads tokens, not features"),
        (error("t5", vec![Example::text(vec![5], vec![500])]), "the head has 88 classes, and no class 500"),
        (error("t5", vec![Example::text(vec![5], vec![])]), "none of its tokens in the row is learned"),
    ] {
        assert!(found.contains(part), "{found}");
    }
    // A target that is cut still ends.
    let cut = FineTuning { length: Some(3), is_truncating: true, epochs: 1, ..like_fixture() };
    let long =
        Example { features: batch("whisper")?[0].features.clone(), ..Example::text(vec![], vec![9; 7]) };
    let run = cut.prepare(&Pretrained::open(folder("whisper")), vec![long], vec![])?;
    assert_eq!((run.summary().target_length, run.summary().labels), (3, 3));
    Ok(())
}
