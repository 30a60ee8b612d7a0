//! Folders of images: what they deliver, and what they refuse.

use std::{fs, io::Cursor, path::Path};

use autobwd::{Error, Result};
use autobwd_data::{Dataset, ImageFolder};
use image::{GrayImage, ImageFormat, Luma, Rgb, RgbImage};
use proptest::prelude::*;

/// The message, without the folder.
fn text_in<T>(folder: &Path, outcome: Result<T>) -> String {
    let text = outcome.err().map(|e: Error| e.to_string()).unwrap_or_default();
    text.replace(&format!("{}/", folder.display()), "")
}

#[test]
fn images_are_labelled_by_their_folders() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for class in ["dog", "cat", ".hidden"] {
        fs::create_dir(at(class)).unwrap();
    }
    RgbImage::from_pixel(4, 2, Rgb([255, 0, 51])).save(at("cat/1.png")).unwrap();
    GrayImage::from_fn(2, 1, |x, _| Luma([if x == 0 { 255 } else { 0 }])).save(at("dog/2.png")).unwrap();
    RgbImage::from_pixel(8, 8, Rgb([200, 200, 200])).save(at("dog/3.JPG")).unwrap();
    fs::write(at("dog/notes.txt"), "no image").unwrap();
    fs::write(at("list.png"), "not in a class").unwrap();

    let images = ImageFolder::builder(folder.path(), 1, 2).build()?;
    assert_eq!((images.len(), images.classes()), (3, &["cat".to_string(), "dog".to_string()][..]));
    let batch = images.batch(&[1, 0])?;
    assert_eq!(batch.get("x")?.dims(), [2, 3, 1, 2]);
    let x = [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.2, 0.2_f32];
    assert_eq!(batch.get("x")?.slice::<f32>()?, x);
    assert_eq!(batch.get("y")?.slice::<i64>()?, [1, 0]);
    let gray = ImageFolder::builder(folder.path(), 5, 5).gray().fields("image", "class").build()?;
    let batch = gray.batch(&[2])?;
    assert_eq!(batch.get("image")?.dims(), [1, 1, 5, 5]);
    assert!(batch.get("image")?.slice::<f32>()?.iter().all(|x| (x - 200.0 / 255.0).abs() < 0.02));
    assert_eq!(batch.get("class")?.slice::<i64>()?, [1]);
    assert_eq!(images.fingerprint(), ImageFolder::builder(folder.path(), 1, 2).build()?.fingerprint());
    assert_ne!(images.fingerprint(), gray.fingerprint());

    // Another size of a file, or another name, is other data.
    let before = images.fingerprint();
    fs::write(at("dog/2.png"), "not an image").unwrap();
    let changed = ImageFolder::builder(folder.path(), 1, 2).build()?;
    assert_ne!(changed.fingerprint(), before);
    let text = text_in(folder.path(), changed.batch(&[0, 1]));
    assert!(text.starts_with("cannot decode the image `dog/2.png`: "), "{text}");
    fs::remove_file(at("dog/2.png")).unwrap();
    assert!(text_in(folder.path(), changed.batch(&[1])).starts_with("cannot read `dog/2.png`: "));
    assert_eq!(changed.batch(&[3]).unwrap_err().to_string(), "there is no image 3: the data set has 3");
    Ok(())
}

#[test]
fn folders_without_images_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let build = |height: usize| {
        let outcome = ImageFolder::builder(folder.path().join("data"), height, 2).build();
        text_in(folder.path(), outcome)
    };
    assert!(build(2).starts_with("cannot read `data`: "));
    fs::create_dir(folder.path().join("data")).unwrap();
    assert_eq!(build(2), "`data`: there are no folders, one for each class");
    fs::create_dir(folder.path().join("data/cat")).unwrap();
    assert_eq!(build(2), "`data/cat`: this class has no .png, .jpg or .jpeg files");
    assert_eq!(build(0), "images of 0 x 2: sides are from 1 to 32768");
    assert_eq!(build(usize::MAX), format!("images of {} x 2: sides are from 1 to 32768", usize::MAX));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn damaged_images_never_panic(at in 0..600_usize, byte in any::<u8>(), len in 1..2000_usize, is_png in any::<bool>()) {
        let folder = tempfile::tempdir().unwrap();
        let (mut bytes, format) = (vec![], if is_png { ImageFormat::Png } else { ImageFormat::Jpeg });
        RgbImage::from_pixel(9, 7, Rgb([1, 2, 3])).write_to(&mut Cursor::new(&mut bytes), format).unwrap();
        let at = at % bytes.len();
        bytes[at] = byte;
        fs::create_dir(folder.path().join("class")).unwrap();
        fs::write(folder.path().join("class/a.png"), &bytes[..len.min(bytes.len())]).unwrap();
        drop(ImageFolder::builder(folder.path(), 2, 3).build().unwrap().batch(&[0]));
    }
}
