//! Shares of a whole, in percent.

use schemars::{Schema, json_schema};

use crate::diagnostic::Complaint;
use crate::value::{Value, all_digits};

/// A whole number of percent, with its sign.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share(pub(crate) u32);

impl Value for Share {
    fn parse(text: &str) -> Result<Self, Complaint> {
        let number = text.strip_suffix('%').map(str::trim_end).filter(|it| all_digits(it));
        match number.map(|number| number.parse::<u32>().unwrap_or(u32::MAX)) {
            Some(percent) if percent <= 100 => Ok(Self(percent)),
            Some(_) => Err(Complaint::new(format!("{text} is more than all"))),
            None => Err(Complaint::new(format!("\"{text}\" is not a share"))),
        }
        .map_err(|complaint| complaint.hint(Self::expected()))
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^[0-9]{1,3} ?%$" })
    }

    fn describe() -> String {
        "0% to 100%".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_have_a_sign_and_are_no_more_than_all() {
        let share = |text| Share::parse(text).ok().map(|share| share.0);
        assert_eq!(["0%", "50%", "100 %"].map(share), [Some(0), Some(50), Some(100)]);
        for text in ["", "%", "50", "101%", "-1%", "0.5%", "half", "99999999999%"] {
            assert_eq!(share(text), None, "{text}");
        }
    }
}
