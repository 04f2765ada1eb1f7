"""Overlay videos: what they show, and that browsers play them."""

import cv2
import numpy as np
import pytest

from prediction import films
from support.errors import InputError


def frames(size: tuple[int, int], number: int) -> list[np.ndarray]:
    """Grey frames whose last row is green and last column blue."""
    frame = np.full((*size, 3), 90, np.uint8)
    frame[-1:], frame[:, -1:] = (0, 255, 0), (0, 0, 255)
    return [frame] * number


def decoded(path) -> list[np.ndarray]:
    video, found = cv2.VideoCapture(str(path)), []
    while (read := video.read())[0]:
        found.append(cv2.cvtColor(read[1], cv2.COLOR_BGR2RGB))
    return found


@pytest.mark.parametrize("size", [(48, 64), (49, 64), (48, 65), (49, 65), (1, 1)])
def test_every_row_and_column_is_kept(tmp_path, size, capfd):
    path, _ = films.write_film(tmp_path / "film.name", frames(size, 5), 10.0)
    assert path.name in ("film.name.mp4", "film.name.webm")
    assert capfd.readouterr().err == ""
    found = decoded(path)
    assert len(found) == 5
    height, width = size
    assert found[0].shape == (height + height % 2, width + width % 2, 3)
    if size == (49, 65):
        row, column = found[0][48, 20].astype(int), found[0][20, 64].astype(int)
        assert row.argmax() == 1, (
            row
        )  # of 49 rows the last, green; it is repeated, so that no colour of others is mixed in
        assert column.argmax() == 2, column
    assert list(tmp_path.iterdir()) == [path]


def test_a_codec_that_opencv_lacks_is_passed_over(tmp_path, monkeypatch, capfd):
    (tmp_path / "film.webm").touch()  # of an earlier run
    monkeypatch.setattr(films, "CODECS", (("none", ".webm"), ("mp4v", ".mp4")))
    assert films.write_film(tmp_path / "film", frames((48, 64), 3), 10.0) == (tmp_path / "film.mp4", False)
    assert len(decoded(tmp_path / "film.mp4")) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["film.mp4"]
    monkeypatch.setattr(films, "CODECS", (("none", ".webm"),))
    with pytest.raises(InputError, match="OpenCV cannot write a video of 64x48 pixels"):
        films.write_film(tmp_path / "film", frames((48, 64), 3), 10.0)
    assert capfd.readouterr().err == ""


def test_a_browser_plays_it(browser, tmp_path):
    path, plays = films.write_film(tmp_path / "film", frames((49, 65), 20), 10.0)
    if not plays:
        pytest.skip("OpenCV here encodes neither H.264 nor VP8")
    (tmp_path / "page.html").write_text(f"<video muted src={path.name}></video>")
    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    play = "video => video.play().then(() => [video.videoWidth, video.videoHeight], error => String(error))"
    assert page.locator("video").evaluate(play) == [66, 50]
    page.close()
