use autobwd::Attrs;

#[derive(Attrs, Clone, Debug)]
pub struct Window {
    #[attr(default = 2, min = 3)]
    pub size: i32,
    pub stride: i32,
}

fn main() {}
