//! Images of lines of text, upright and upside down.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

/// Height and width of an image.
pub(crate) const SIZE: [usize; 2] = [48, 192];

/// Columns of letters and digits on a grid of 5 × 7, the top row in the lowest bit.
const GLYPHS: [[u8; 5]; 36] = [
    [0x3e, 0x51, 0x49, 0x45, 0x3e],
    [0x00, 0x42, 0x7f, 0x40, 0x00],
    [0x42, 0x61, 0x51, 0x49, 0x46],
    [0x21, 0x41, 0x45, 0x4b, 0x31],
    [0x18, 0x14, 0x12, 0x7f, 0x10],
    [0x27, 0x45, 0x45, 0x45, 0x39],
    [0x3c, 0x4a, 0x49, 0x49, 0x30],
    [0x01, 0x71, 0x09, 0x05, 0x03],
    [0x36, 0x49, 0x49, 0x49, 0x36],
    [0x06, 0x49, 0x49, 0x29, 0x1e],
    [0x7e, 0x11, 0x11, 0x11, 0x7e],
    [0x7f, 0x49, 0x49, 0x49, 0x36],
    [0x3e, 0x41, 0x41, 0x41, 0x22],
    [0x7f, 0x41, 0x41, 0x22, 0x1c],
    [0x7f, 0x49, 0x49, 0x49, 0x41],
    [0x7f, 0x09, 0x09, 0x09, 0x01],
    [0x3e, 0x41, 0x49, 0x49, 0x7a],
    [0x7f, 0x08, 0x08, 0x08, 0x7f],
    [0x00, 0x41, 0x7f, 0x41, 0x00],
    [0x20, 0x40, 0x41, 0x3f, 0x01],
    [0x7f, 0x08, 0x14, 0x22, 0x41],
    [0x7f, 0x40, 0x40, 0x40, 0x40],
    [0x7f, 0x02, 0x0c, 0x02, 0x7f],
    [0x7f, 0x04, 0x08, 0x10, 0x7f],
    [0x3e, 0x41, 0x41, 0x41, 0x3e],
    [0x7f, 0x09, 0x09, 0x09, 0x06],
    [0x3e, 0x41, 0x51, 0x21, 0x5e],
    [0x7f, 0x09, 0x19, 0x29, 0x46],
    [0x46, 0x49, 0x49, 0x49, 0x31],
    [0x01, 0x01, 0x7f, 0x01, 0x01],
    [0x3f, 0x40, 0x40, 0x40, 0x3f],
    [0x1f, 0x20, 0x40, 0x20, 0x1f],
    [0x3f, 0x40, 0x38, 0x40, 0x3f],
    [0x63, 0x14, 0x08, 0x14, 0x63],
    [0x07, 0x08, 0x70, 0x08, 0x07],
    [0x61, 0x51, 0x49, 0x45, 0x43],
];

/// A source of labelled images, always the same for a seed.
pub(crate) struct Lines(Pcg64);

impl Lines {
    pub(crate) fn new(seed: u64) -> Lines {
        Lines(Pcg64::seed_from_u64(seed))
    }

    /// `n` images, `[n, 3, 48, 192]` from −1 to 1, and their labels, 1 for upside down.
    pub(crate) fn batch(&mut self, n: usize) -> (Vec<f32>, Vec<i64>) {
        let (mut pixels, mut labels) = (vec![], vec![]);
        for _ in 0..n {
            let label = i64::from(self.0.random::<bool>());
            let mut image = self.image();
            if label == 1 {
                image.reverse();
            }
            (0..3).for_each(|_| pixels.extend_from_slice(&image));
            labels.push(label);
        }
        (pixels, labels)
    }

    /// Grey text of 5 to 9 letters with a shadow of noise, on a background of another grey.
    fn image(&mut self) -> Vec<f32> {
        let random = &mut self.0;
        let [height, width] = SIZE;
        let paper: f32 = random.random_range(-0.8..0.8);
        let contrast: f32 = random.random_range(0.5..1.2);
        let ink = if paper > 0.0 { paper - contrast } else { paper + contrast };
        let noise: f32 = random.random_range(0.05..0.4);
        let mut image = vec![paper; height * width];
        let letters = random.random_range(5..=9);
        let scale = random.random_range(3.0..5.0_f32).min((width - 8) as f32 / (6 * letters) as f32);
        let top = random.random_range(2.0..(height as f32 - 7.0 * scale - 1.0).max(2.1));
        let slant: f32 = random.random_range(-0.3..0.3);
        for letter in 0..letters {
            let glyph = GLYPHS[random.random_range(0..GLYPHS.len())];
            let left = 4.0 + letter as f32 * 6.0 * scale;
            for y in 0..height {
                let row = (y as f32 - top) / scale;
                if !(0.0..7.0).contains(&row) {
                    continue;
                }
                for x in 0..width {
                    let column = (x as f32 - left + slant * (y as f32 - top - 3.5 * scale)) / scale;
                    if (0.0..5.0).contains(&column) && glyph[column as usize] >> row as usize & 1 == 1 {
                        image[y * width + x] = ink;
                    }
                }
            }
        }
        image
            .iter_mut()
            .for_each(|pixel| *pixel = (*pixel + noise * random.random_range(-1.0..1.0)).clamp(-1.0, 1.0));
        image
    }
}
